// Experts on several ranks: every rank has the matrices of E / p of them. Tokens go to the ranks of their experts and
// each slot's result comes back, where a token's slots are added in their order: no sum depends on p. A token is sent
// once to each rank that has an expert of it, forward and, as the gradient of its output, backward.
#pragma once
#include "autograd/expert_ops.h"
#include "kernels/core/device.h"
#include "parallel/comm/process_group.h"

namespace gt {

// Rows of the ranks' experts. Sizes are known only when the router has chosen: on a device without memory they are
// bounds, of which a run takes as much as it needs.
struct ExpertAxis {
  ProcessGroup& group;
  const DeviceApi* device = nullptr;  // reads counts; not needed by one rank
  int64_t experts = 0;                // of all ranks, a multiple of the group's size
  double load = 0;  // without memory: rows of this rank's experts over their mean; 0: the most that there can be
};

namespace ops {

// Tokens of all ranks that have slots of this rank's experts. One rank: its own.
struct ExpertInputs {
  Var tokens;       // [m, C], of the ranks in their order, ascending
  Routing routing;  // of the slots of this rank's experts, each of one token

  // What goes where; lives as long as the tape's records of it. Empty for one rank.
  struct Plan {
    Tensor copies, slots, rows;                     // kernels/expert_ops.h, SendRows
    const int64_t* counts = nullptr;                // copies to each rank, copies from it, slots to it, slots from it
    int64_t sent = 0, got = 0, own = 0, taken = 0;  // their sums
    ProcessGroup* group = nullptr;
    PeerCounts copies_out(int64_t width) const { return {part(0), part(1), width}; }
    PeerCounts slots_out(int64_t width) const { return {part(2), part(3), width}; }
    PeerCounts slots_back(int64_t width) const { return {part(3), part(2), width}; }

   private:
    std::span<const int64_t> part(int i) const {
      const auto p = static_cast<size_t>(group->size());
      return {counts + static_cast<size_t>(i) * p, p};
    }
  } plan;
};

// Forward: all-to-all of counts, slots, weights and tokens. Backward: gradients of slots and weights.
ExpertInputs send_to_experts(Tape&, Var x, const Routing&, const ExpertAxis&);
// The outputs y of expert_combine, one for each slot (of one rank: for each token), as sums of this rank's tokens
// [n, C]. Forward: all-to-all of slots; backward: of tokens. Several ranks: y is transient, and no rule reads it.
Var return_to_tokens(Tape&, const ExpertInputs&, Var y, Output);

}  // namespace ops
}  // namespace gt
