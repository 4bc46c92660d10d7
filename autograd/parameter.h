// A trainable leaf: logical shape, how the mesh cuts it, and local views of its value and gradient.
// It does not know ranks: the cut is data, whoever lays out memory (parallel/zero) reads it.
#pragma once
#include <string>

#include "autograd/shard_spec.h"
#include "kernels/core/tensor.h"

namespace gt {

struct Init {
  enum class Kind : uint8_t { kZero, kOne, kNormal } kind = Kind::kNormal;
  float stddev = 0.02f;
};

class ParamScope;

// A weight [out, in] as f8e4m3, made when its value is published or gathered.
struct Fp8Weight {
  Tensor rows, columns;  // codes [out, in], and the same transposed
  Tensor inverse;        // f32 [1]: what codes are multiplied by
};

struct Parameter {
  std::string name;  // "layers.3.attn.qkv.weight": the key in checkpoints, logs and tests; never depends on the layout
  Shape full_shape;      // logical, before any cut and without padding
  Shape local_shape;     // what this rank holds; includes vocabulary padding rows
  ShardSpec shard;
  Init init;
  int64_t pad_rows = 0;  // dim 0 of the padded logical tensor, 0: no padding. Padded rows are 0 and stay 0
  DType dtype = DType::kF32;  // of value: f32, or half
  bool fake_quant = false;  // `value` is what int8 codes by row can say; what is trained is kept apart
  bool fp8 = false;      // products read `codes`
  bool decay = true;     // weight decay applies (parameters with two or more logical dimensions)
  std::string tied_to;   // name of the owner when this is a second copy of another parameter (tied head); else empty
  bool tied_owner = false;  // another parameter is tied to this one

  // Local, compute dtype; a view into a flat buffer. No data outside its scope where values are gathered for use only.
  Tensor value;
  Fp8Weight codes;  // of value, where that has data
  Tensor grad;  // local, f32 or bf16; a view into a flat buffer. No data: the first writer asks for room (grad_dst)
  bool grad_dirty = false;  // false: the next writer overwrites; true: it accumulates
  int64_t version = 0;      // a fresh_version() whenever value or where it lies changes: packed copies are then stale
  ParamScope* scope = nullptr;  // gives room for `grad` where it does not always have some
};

// A number that no parameter of this process has had. Packed copies of weights are found by address and version, and
// addresses are used again: by the next scope that is gathered there, by the next model that is built. Says nothing
// but "different", so it reaches no result.
int64_t fresh_version();

// The unit of gathering and of gradient reduction: a handful of parameters that are used together (one block).
// Called a few times per block and microbatch, never per element.
class ParamScope {
 public:
  virtual ~ParamScope() = default;
  virtual void acquire(Stream) = 0;      // parameters readable (ZeRO-3: wait for the all-gather, start the next)
  virtual void release(Stream) = 0;      // parameters may be dropped
  virtual void grads_ready(Stream) = 0;  // every gradient of this scope is final for this microbatch
  virtual void open_grads() {}           // a gradient is about to be written and has no data: give it some
};

struct GradDst {
  Tensor tensor;
  bool accumulate;
};

// Where to write dL/dp: straight into the flat gradient buffer; the first writer of a step sets, later ones add.
inline GradDst grad_dst(Parameter& p) {
  if (!p.grad && p.scope != nullptr) p.scope->open_grads();
  const bool accumulate = p.grad_dirty;
  p.grad_dirty = true;
  return {p.grad, accumulate};
}

}  // namespace gt
