// A parameter of the model: logical shape, tensor-parallel sharding, and local views of its value and gradient.
// Independent of ranks: the sharding is data, read by whatever lays out memory (parallel/zero).
#pragma once
#include <string>
#include <utility>

#include "autograd/shard_spec.h"
#include "kernels/core/tensor.h"

namespace gt {

struct Init {
  enum class Kind : uint8_t { kZero, kOne, kNormal } kind = Kind::kNormal;
  float stddev = 0.02f;
};

class ParamUnit;

// A weight [out, in] in E4M3, quantized when its value is updated or gathered.
struct Fp8Weight {
  Tensor rowwise, columnwise;  // [out, in], [in, out]
  Tensor scale_inv;            // f32 [1]
};

struct Parameter {
  std::string name;   // "layers.3.attn.qkv.weight": the key in checkpoints, logs and tests; never depends on the layout
  Shape full_shape;   // logical: unsplit, without padding
  Shape local_shape;  // on this rank; includes vocabulary padding rows
  ShardSpec shard;
  Init init;
  int64_t pad_rows = 0;       // dim 0 of the padded logical tensor, 0: no padding. Padded rows are 0 and stay 0
  DType dtype = DType::kF32;  // of value: f32, bf16 or fp16
  bool fake_quant = false;    // `value` is fake-quantized to int8 per row; what is trained is kept separately
  bool int8 = false;          // frozen and held in int8 with a scale per row: `value` exists while its unit is in use
  bool fp8 = false;           // FP8 GEMMs read fp8_data
  bool frozen = false;        // never updated: no gradient, no optimizer state, no master weights
  int matrices = 0;           // of a linear layer's weight [out, in]: number of matrices along `out`, of each expert
  bool decay = true;          // weight decay applies (parameters with two or more logical dimensions)
  std::string tied_to;        // the owner's name if this is a second copy of a parameter (tied head); else empty
  bool tied_owner = false;    // another parameter is tied to this one

  // Local, in the compute dtype; a view of a flat buffer. No data outside its unit where values are gathered on use.
  Tensor value;
  Fp8Weight fp8_data;  // FP8 data of value, while that has data
  Tensor grad;         // local, f32 or bf16; a view of a flat buffer. No data: the first writer allocates it (grad_dst)
  double* squares = nullptr;     // host; where ops may record the sum of squares of `grad`; -1: unknown
  bool grad_dirty = false;       // false: the next writer overwrites; true: it accumulates
  Parameter* adds_to = nullptr;  // of a tied copy: the owner, to whose gradient its own is added
  int64_t version = 0;        // a fresh_version() whenever value or its address changes: packed copies are then stale
  ParamUnit* unit = nullptr;  // its FSDP unit, which allocates `grad` where that is not permanent
};

// Returns a number that no parameter of this process has had. Packed copies of weights are keyed by address and
// version, because addresses are reused: by the next unit gathered there, by the next model. The number is only an
// identity and affects no result. Thread-safe.
int64_t fresh_version();

// FSDP unit: a few parameters that are used together (one block), gathered and reduced as one. Called a few times per
// block and microbatch, never per element.
class ParamUnit {
 public:
  virtual ~ParamUnit() = default;
  virtual void acquire(Stream) = 0;      // parameters readable (ZeRO-3: wait for the all-gather, start the next)
  virtual void release(Stream) = 0;      // parameters may be freed
  virtual void grads_ready(Stream) = 0;  // every gradient of this unit is final for this microbatch
  virtual void open_grads() {}           // a gradient without data is about to be written: allocate it
};

struct GradDst {
  Tensor tensor;
  bool accumulate = false;
};

// Returns where to write dL/dp, in the flat gradient buffer: the first write of a step overwrites, later ones add.
// A frozen parameter has no gradient: the tensor is empty, and the caller computes nothing.
inline GradDst grad_dst(Parameter& p) {
  if (p.frozen) return {};
  if (p.adds_to != nullptr) return grad_dst(*p.adds_to);
  if (!p.grad && p.unit != nullptr) p.unit->open_grads();
  if (p.squares != nullptr) *p.squares = -1;
  return {p.grad, std::exchange(p.grad_dirty, true)};
}

// Where the op that writes to grad_dst(p) records the sum of squares; empty: it need not.
inline Tensor grad_squares(const Parameter& p) {
  if (p.adds_to != nullptr) return grad_squares(*p.adds_to);
  return p.squares ? Tensor{reinterpret_cast<std::byte*>(p.squares), {1}, DType::kF64, p.grad.device} : Tensor{};
}

}  // namespace gt
