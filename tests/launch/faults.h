// Faults for the oracle to find: groups whose n-th call of a kind does not happen, kernels that get one call wrong.
// Each applies to every rank of the faulty layout alike, as a bug in the code would.
#pragma once
#include <memory>
#include <string>

#include "kernels/backend.h"
#include "parallel/comm/process_group.h"

namespace gt {

// Call number `call` (from 0, counted a rank and a group, `every`: all calls) of `op` in groups whose label begins with
// `group` ("tp", "dp", "ends", "pp") returns at once and moves nothing.
struct SkippedCall {
  enum class Op : uint8_t { kAllReduce, kAllGather, kReduceScatter } op = Op::kAllReduce;
  std::string group = "tp";
  int call = 0;
  bool every = false;
};
std::unique_ptr<GroupFactory> skip_call(GroupFactory& inner, const SkippedCall&);

// The CPU backend with one fault. Numbers count from 0 on each rank's thread.
const Backend& doubled_row_bias(int call);  // adds the bias of this call of add_bias twice
const Backend& padded_logits_zero();        // padding takes part in the softmax, with logit 0
const Backend& forgotten_weight_decay();    // the optimizer leaves decay out

}  // namespace gt
