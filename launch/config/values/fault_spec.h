// Fault injection for tests: --fault.inject ACTION@SITE[:key=value,…], several separated by spaces. Compiled in with
// the CMake option GPT_TESTING only; other builds reject the option.
//   layout   skip in the static proof before the first step: the `index`th of its different collectives is left out
//   step     kill, stop (SIGSTOP), segv, abort, terminate (uncaught exception in a thread), exit (code n), delay (ms),
//            at the beginning of step `step`
//   save     delay (ms) at the beginning of a save after step `step`
//   grad     nan, inf, scale (by n) in the reduced gradients of `param` (default: every tensor of the rank) in the step
//            that consumes batch `step` - 1: step `step`, unless a rollback skipped batches
//   forward  nan, inf in the output of the op that first reads `param` in microbatch `mb` (default: any) of the step
//   backward nan, inf in the output of the op that first writes the gradient of `param`
//   master   nan, inf, flip (bit `bit`) in the weights before step `step`
//   value    flip in the first 16-bit weight that the rank updates, after step `step`
// keys: rank (default 0; -1: all), step (default: every step), until (last step), param, mb, index, bit, n, ms
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace gt {

struct Injection {
  std::string action, site, param;
  int64_t rank = 0, step = -1, until = -1, index = 0, bit = 30, ms = 0, microbatch = -1;
  double n = 1;
};

// Parses fault.inject; "" injects nothing. Throws kUsage naming the invalid part.
std::vector<Injection> parse_injections(const std::string&);

}  // namespace gt
