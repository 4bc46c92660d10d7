// Faults on demand, for tests of what a run does about them: --fault.inject ACTION@SITE[:key=value,…], several
// separated by spaces. Built in with the CMake option GPT_TESTING only; elsewhere the option is refused.
//   step     kill, stop (SIGSTOP), segv, abort, terminate (an exception that a thread does not catch), exit (code n),
//            delay (ms) at the beginning of step `step`
//   save     delay (ms) at the beginning of a save after step `step`
//   grad     nan, inf, scale (by n) in the reduced gradients of `param` (default: every tensor of the rank) in the step
//            that takes batch `step` - 1: step `step`, unless a rollback has left batches out
//   forward  nan, inf in the result of the op that first reads `param` in microbatch `mb` (default: any) of the step
//   backward the same, of the op that first writes its gradient
//   master   nan, inf, flip (bit `bit`) in the weights before step `step`
//   value    flip in the first half weight that the rank updates, after step `step`
// keys: rank (default 0; -1: all), step (default: every step), until (last step), param, mb, index, bit, n, ms
#pragma once
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "parallel/zero/shard_view.h"

namespace gt {

struct Injection {
  std::string action, site, param;
  int64_t rank = 0, step = -1, until = -1, index = 0, bit = 30, ms = 0, microbatch = -1;
  double n = 1;
};

// kUsage naming what is wrong; "" is no fault.
std::vector<Injection> parse_injections(const std::string&);

class Injector {
 public:
  Injector(const std::string& spec, int rank) : faults_(parse_injections(spec)), rank_(rank) {}
  bool wants(const char* site, int64_t step) const;  // on some rank
  std::vector<std::string> params() const;           // every tensor that a fault names
  void at_step(int64_t step) const;  // may not return
  void at_save(int64_t step) const;
  // Flips a bit of a value of two bytes.
  void at_value(int64_t step, std::byte* value, const DeviceApi&, Stream) const;
  std::vector<Injection> in_ops(int64_t step) const;  // what op_watch.h is to plant
  // `views`: of the site's tensors.
  void at_tensors(const char* site, int64_t step, const std::vector<ShardView>& views, const Backend&, Stream) const;

 private:
  bool due(const Injection&, const char* site, int64_t step) const;
  bool hits(const Injection&, const char* site, int64_t step) const;
  std::vector<Injection> faults_;
  int rank_;
};

}  // namespace gt
