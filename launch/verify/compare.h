// Two runs of one model held against each other, tensor by tensor, in the order in which a step makes them: so the
// first that differs is where to look.
#pragma once
#include <string>
#include <vector>

#include "launch/verify/mesh_run.h"

namespace gt {

enum class Seen : uint8_t { kActivation, kLoss, kGradient, kNorm, kParameter, kState, kCopy };
const char* name_of(Seen);  // "gradient"

// One thing that was compared.
struct Difference {
  Seen seen = Seen::kLoss;
  std::string name;           // "layers.3.attn.qkv.weight", "exp_avg/layers.3…"; "loss", "grad norm"
  int step = 1;               // from 1
  double error = 0, ulp = 0;  // relative; TensorDistance::ulp
  double limit = 0;
  bool bad = false;
  std::vector<int> ranks;  // of the layout that hold it, as far as known
  int64_t sample = -1;     // kActivation: first sample of the microbatch
};

// What "equal" means. All 0: bit by bit.
struct Limits {
  double loss = 1e-6, norm = 1e-6;  // relative
  double tensor = 1e-5;             // relative L2 of gradients, parameters and state
  bool free = false;                // each run went its own way: later losses within `later`, and of later steps
  double later = 1e-5;              // no norms, parameters or state
  double cosine = -1, length = 0;   // low precision: instead, at least this cosine, and lengths this close (tensors of
                                    // n < 64 elements: 8 / sqrt(n) times that); -1: off
};
Limits exact_limits();
// f32: above; bf16 and f16: cosine 0.999, lengths and losses within 1 %; f8e5m2, where a rounding error of a half takes
// one code in thirty to its neighbour, up to a quarter away: cosine 0.99, lengths within 3 %, losses within 1 %. Second
// moments are compared by their roots there, which have the units of gradients.
Limits limits_for(DType compute);

// Parameters: an adaptive optimizer gives an element whose gradient is rounding noise (a key's bias, for one) a
// full-sized update of random sign. Elements whose gradient never reached 1e-3 of its tensor's root mean square are
// therefore left out of the relative error and may differ by no more than the tensor's largest update, twice and a
// half.
//
// A step whose norm is finite in neither run was left out by both (fp16 before it has found its loss scale): its
// gradients are not compared, all else is.
//
// `reference` is of the same model and batch. In execution order: of each step activations (first step), loss,
// gradients from the last layer to the first, their norm, parameters, state, copies that differ from their owner.
std::vector<Difference> compare(const MeshResult& layout, const MeshResult& reference, const Limits&);

const Difference* first_bad(const std::vector<Difference>&);  // nullptr: none

}  // namespace gt
