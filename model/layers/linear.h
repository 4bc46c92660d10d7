// y = x W^T + b, cut over the tensor axis by columns (outputs) or rows (inputs). The layer picks its collectives from
// the cut, so model code has none.
#pragma once
#include "autograd/ops.h"
#include "model/module.h"
#include "parallel/tensor/collective_ops.h"

namespace gt {

// Column-parallel: W split on `out` (`blocks` of them for a fused qkv), bias split with it. x is whole on every rank.
class ColumnLinear : public Module {
 public:
  ColumnLinear(std::string name, int64_t in, int64_t out, const Build& b, int blocks = 1)
      : Module(std::move(name)), tp_(b.tp()),
        weight(param("weight", {out, in}, ShardSpec::split(0, blocks), {Init::Kind::kNormal, b.init_std}, b)),
        bias(param("bias", {out}, ShardSpec::split(0, blocks), {Init::Kind::kZero}, b)) {}
  Var operator()(Tape& t, Var x) { return ops::linear(t, ops::copy_to_group(t, x, tp_), weight, &bias); }

 private:
  ProcessGroup& tp_;

 public:
  Parameter &weight, &bias;
};

// Row-parallel: W split on `in`, x split to match. The bias is replicated and added once, after the reduction.
class RowLinear : public Module {
 public:
  RowLinear(std::string name, int64_t in, int64_t out, float init_std, const Build& b)
      : Module(std::move(name)), tp_(b.tp()),
        weight(param("weight", {out, in}, ShardSpec::split(1), {Init::Kind::kNormal, init_std}, b)),
        bias(param("bias", {out}, ShardSpec::replicate(), {Init::Kind::kZero}, b)) {}
  Var operator()(Tape& t, Var x) { return finish(t, ops::linear(t, x, weight, fused_bias())); }

  // For ops that contain this layer's GEMM: the bias to fuse (alone) or nothing, and what is left to do after it.
  Parameter* fused_bias() { return tp_.size() == 1 ? &bias : nullptr; }
  Var finish(Tape& t, Var y) { return tp_.size() == 1 ? y : ops::add_bias(t, ops::reduce_from_group(t, y, tp_), bias); }

 private:
  ProcessGroup& tp_;

 public:
  Parameter &weight, &bias;
};

}  // namespace gt
