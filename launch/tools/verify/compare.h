// Compares two runs of one model tensor by tensor in execution order, so that the first difference points to the cause.
#pragma once
#include <string>
#include <vector>

#include "launch/tools/verify/mesh_run.h"

namespace gt {

enum class Quantity : uint8_t { kActivation, kLoss, kGradient, kNorm, kParameter, kState, kCopy, kCalls };
const char* name_of(Quantity);  // "gradient"

// Result of one comparison. kCalls: those of a rank in its groups.
struct Difference {
  Quantity quantity = Quantity::kLoss;
  std::string name;           // "layers.3.attn.qkv.weight", "exp_avg/layers.3…"; "loss", "grad norm"
  int step = 1;               // 1-based
  double error = 0, ulp = 0;  // relative; TensorDistance::ulp
  double limit = 0;
  bool bad = false;
  std::string missed;      // at 16 bits: "cosine 0.9981 where 0.999 is needed"
  std::vector<int> ranks;  // ranks of the layout that hold it, if known
  int64_t sample = -1;     // kActivation: first sample of the microbatch
};

// Tolerances; all 0: bitwise identical.
struct Limits {
  double loss = 1e-6, norm = 5e-6;  // relative; a norm is no farther off than its gradients are
  double tensor = 1e-5;             // relative L2 of gradients, parameters and state
  // Independent runs: after step 1, losses within `later`; norms, parameters and state are not compared.
  bool free = false;
  double later = 1e-5;
  // Low precision: minimum cosine similarity, and maximum relative difference of lengths. Tensors of n < few^2
  // elements may miss both by few / sqrt(n) times as much. cosine -1: relative L2 instead.
  double cosine = -1, length = 0, few = 8;
};
Limits exact_limits();
// f32: the defaults above. bf16, f16: cosine 0.999, lengths within 1.5 %, losses within 1 %. f8e5m2: cosine 0.99,
// lengths within 3 %, from 144 elements on, losses within 1 %. There, a rounding error of a 16-bit value moves one
// quantized value in thirty to its neighbour, up to 25 % away. Second moments are compared by their square roots, which
// have the units of gradients.
Limits limits_for(DType compute);

// Parameters: an adaptive optimizer gives elements whose gradient is rounding noise (such as the key bias) full-sized
// updates of random sign. The relative error therefore excludes elements whose gradient never reached 1e-3 of its
// tensor's RMS, provided they differ by at most 2.5 times the tensor's largest update.
//
// A step whose gradient norm is not finite in either run was skipped by both (fp16 before the loss scale settles): its
// gradients are not compared, everything else is.
//
// Returns, per step in execution order: activations (first step), loss, gradients from the last layer to the first,
// gradient norm, parameters, state, and copies that differ from their owner. Requires: `reference` has the same model
// and batch.
std::vector<Difference> compare(const MeshResult& layout, const MeshResult& reference, const Limits&);

const Difference* first_bad(const std::vector<Difference>&);  // nullptr: all within tolerance

// At 16 bits a tensor may be ill-conditioned, such as those of an adapter of rank 1, which passes one number a token.
// `rounding`: one rank against itself in f32. Differences of up to kRoundings times those, at most 0.2, are no longer
// bad. Returns their number.
constexpr double kRoundings = 5;
int64_t forgive_rounding(std::vector<Difference>& found, const std::vector<Difference>& rounding);

}  // namespace gt
