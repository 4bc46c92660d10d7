// Which steps are traced: log.trace_steps.
#pragma once
#include <cstdint>
#include <string>

namespace gt {

// Steps [first, end); first == end: none.
struct TraceWindow {
  int64_t first = 0, end = 0;
  bool has(int64_t step) const { return step >= first && step < end; }
};
// "10:12" is steps 10 and 11, "10" is step 10, "" is none. Throws kUsage on anything else.
TraceWindow parse_trace_window(const std::string& text);

}  // namespace gt
