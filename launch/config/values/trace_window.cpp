#include "launch/config/values/trace_window.h"

#include "kernels/core/check.h"
#include "launch/options/json_text.h"

namespace gt {

TraceWindow parse_trace_window(const std::string& text) {
  if (text.empty()) return {};
  const size_t colon = text.find(':');
  TraceWindow w;
  const bool first = parse_int(text.substr(0, colon), w.first);
  const bool end = colon == std::string::npos ? (w.end = w.first + 1, true) : parse_int(text.substr(colon + 1), w.end);
  GT_REQUIRE(first && end && w.first >= 1 && w.end > w.first, Exit::kUsage,
             "expected FIRST:END, steps FIRST to END - 1 as in 10:12, or one step, found \"", text, "\"");
  return w;
}

}  // namespace gt
