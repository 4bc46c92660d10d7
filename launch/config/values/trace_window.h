// Range of traced steps: log.trace_steps.
#pragma once
#include <cstdint>
#include <string>

namespace gt {

// Steps [first, end); empty if first == end.
struct TraceWindow {
  int64_t first = 0, end = 0;
  bool has(int64_t step) const { return step >= first && step < end; }
};
// Parses "10:12" as steps 10 and 11, "10" as step 10 and "" as none. Throws kUsage otherwise.
TraceWindow parse_trace_window(const std::string& text);

}  // namespace gt
