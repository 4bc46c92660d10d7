// Injected faults for the verification oracle: groups that skip their n-th call of an op, kernels that compute one call
// wrongly. Each applies to every rank of the faulty layout, like a bug in the code.
#pragma once
#include <memory>
#include <string>

#include "kernels/backend.h"
#include "parallel/comm/process_group.h"

namespace gt {

// Call `call` of `op` (from 0, per rank and group; `every`: all calls) returns immediately without moving data, in
// groups whose label begins with `group` ("tp", "dp", "ends", "pp").
struct SkippedCall {
  enum class Op : uint8_t { kAllReduce, kAllGather, kReduceScatter } op = Op::kAllReduce;
  std::string group = "tp";
  int call = 0;
  bool every = false;
};
std::unique_ptr<GroupFactory> skip_call(GroupFactory& inner, const SkippedCall&);

// The CPU backend with one fault. Calls count from 0 on each rank's thread.
const Backend& doubled_row_bias(int call);  // adds the bias twice in this call of add_bias
const Backend& padded_logits_zero();        // padding takes part in the softmax with logit 0
const Backend& forgotten_weight_decay();    // the optimizer omits weight decay

}  // namespace gt
