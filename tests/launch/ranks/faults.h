// Injected faults for the verification oracle: groups that skip their n-th call of an op, kernels that compute one call
// wrongly. Each applies to every rank of the faulty layout, like a bug in the code.
#pragma once
#include <memory>
#include <string>

#include "kernels/backend.h"
#include "parallel/comm/process_group.h"

namespace gt {

// Call number `call` of `op` (from 0, per rank and group; `every`: all calls) returns immediately without moving data,
// in groups whose label begins with `group` ("tp", "dp", "embedding", "pp").
struct SkippedCall {
  enum class Op : uint8_t { kAllReduce, kAllGather, kReduceScatter } op = Op::kAllReduce;
  std::string group = "tp";
  int call = 0;
  bool every = false;
};
std::unique_ptr<GroupFactory> skip_call(GroupFactory& inner, const SkippedCall&);

// The CPU backend with one fault. Calls are numbered from 0 on each rank's thread.
const Backend& doubled_row_bias(int call);  // adds the bias of this call of add_bias twice
const Backend& padded_logits_zero();        // padding takes part in the softmax, with logit 0
const Backend& omitted_weight_decay();      // the optimizer applies no weight decay
const Backend& shifted_positions();  // rotary positions begin in the middle of a sequence, as on the second of two
                                     // sequence-parallel ranks
const Backend& norm_of_own_heads();  // a whole-row norm divides by the heads of its own rank only
// On ranks that have called moved_windows_here(true), blocks with this window have none, and the others have it: as if
// a pattern of two were counted from the first block of the stage instead of the model.
const Backend& moved_windows(int64_t window);
void moved_windows_here(bool);  // affects the calling thread

}  // namespace gt
