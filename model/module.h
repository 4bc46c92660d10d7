// A Module is a name, parameters and children; nothing virtual. Each layer has its own typed operator().
#pragma once
#include <deque>
#include <string>
#include <vector>

#include "autograd/parameter.h"
#include "autograd/precision.h"
#include "autograd/quant_range.h"
#include "parallel/tensor/fp8_linear.h"
#include "parallel/mesh.h"
#include "parallel/tensor/tensor_axis.h"

namespace gt {

struct Build {  // everything a layer needs to construct itself
  const Mesh& mesh;
  float init_std = 0.02f;
  uint64_t seed = 0;  // of dropout
  bool sequence_parallel = false;  // between tensor-parallel layers each tp rank holds its own rows
  Precision precision = {};
  ProcessGroup& tp() const { return mesh.group(Axis::kTp); }
  TensorAxis tensor() const { return {tp(), sequence_parallel}; }
  int tp_size() const { return mesh.size(Axis::kTp); }
  // Of a parameter that every tp rank holds whole and applies between tensor-parallel layers.
  ShardSpec whole() const { return tensor().cut_rows() ? ShardSpec::partial() : ShardSpec::replicate(); }
};

class Module {
 public:
  explicit Module(std::string name) : name_(std::move(name)) {}
  Module(const Module&) = delete;  // parameters have stable addresses
  Module& operator=(const Module&) = delete;
  const std::string& name() const { return name_; }
  std::vector<Parameter*> parameters() {
    std::vector<Parameter*> out;
    collect(out);
    return out;
  }
  std::vector<QuantRange*> ranges() {
    std::vector<QuantRange*> out;
    collect(out);
    return out;
  }

  std::vector<Fp8Range*> fp8_ranges() {
    std::vector<Fp8Range*> out;
    collect(out);
    return out;
  }

 protected:
  // The range of this layer's input; nullptr where nothing is quantized.
  QuantRange* input_range(const Build& build) {
    return build.precision.int8 ? &ranges_.emplace_back(QuantRange{name_ + ".input", {}, {}}) : nullptr;
  }
  // How this linear layer scales what it encodes; nullptr where products are not of 8 bits. input, output_grad: ranks
  // that hold columns of these.
  const Fp8Linear* fp8_linear(const Build& build, bool input_split, bool output_split) {
    if (!build.precision.fp8) return nullptr;
    ProcessGroup* tp = build.tp_size() > 1 ? &build.tp() : nullptr;
    fp8_.push_back({{name_ + ".input", input_split ? tp : nullptr},
                    {name_ + ".output_grad", output_split ? tp : nullptr}});
    return &fp8_.back();
  }
  // A leaf of logical shape `full`. Split dimensions must be divisible by what they are cut into (checked before any
  // rank starts).
  Parameter& param(const std::string& leaf, Shape full, ShardSpec shard, Init init, const Build& build,
                   DType dtype = DType::kF32) {
    Parameter& p = own_.emplace_back();
    p.name = name_ + "." + leaf;
    p.full_shape = p.local_shape = full;
    p.shard = shard;
    p.init = init;
    p.dtype = dtype;
    p.decay = full.rank >= 2;
    if (shard.kind == ShardSpec::Kind::kSplit) {
      int64_t& extent = p.local_shape.dim[static_cast<size_t>(shard.dim)];
      const int64_t whole = extent;
      extent = local_extent(shard, whole, build.tp_size());
      GT_CHECK(extent > 0, p.name, " of extent ", whole, " cannot be split over tp ", build.tp_size());
    }
    return p;
  }
  template <class M>
  void child(M& m) { children_.push_back(&m); }

 private:
  void collect(std::vector<Parameter*>& out) {
    for (Parameter& p : own_) out.push_back(&p);
    for (Module* m : children_) m->collect(out);
  }
  void collect(std::vector<QuantRange*>& out) {
    for (QuantRange& r : ranges_) out.push_back(&r);
    for (Module* m : children_) m->collect(out);
  }
  void collect(std::vector<Fp8Range*>& out) {
    for (Fp8Linear& f : fp8_) out.insert(out.end(), {&f.input, &f.output_grad});
    for (Module* m : children_) m->collect(out);
  }
  std::string name_;
  std::deque<Parameter> own_;
  std::deque<QuantRange> ranges_;
  std::deque<Fp8Linear> fp8_;
  std::vector<Module*> children_;
};

}  // namespace gt
