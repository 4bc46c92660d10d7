#include "launch/config/config_log.h"

#include <fmt/format.h>

#include "kernels/core/check.h"
#include "kernels/core/text.h"
#include "launch/config/values/endpoint.h"
#include "launch/config/values/trace_window.h"

namespace gt {

void check_log(const Config& c, const RuleContext& rules) {
  try {
    const TraceWindow w = parse_trace_window(c.log.trace_steps);
    if (w.first > c.train.steps)
      rules.notes.push_back(fmt::format("log.trace_steps {} is after the last step, {}: nothing will be traced",
                                        c.log.trace_steps, c.train.steps));
  } catch (const Error& e) { rules.bad("log.trace_steps", e.what(), ""); }
  if (!c.log.prometheus.empty()) try {
      parse_endpoint(c.log.prometheus);
    } catch (const Error& e) { rules.bad("log.prometheus", e.what(), ""); }
  if (c.log.flops_step > c.train.steps)
    rules.notes.push_back(fmt::format("log.flops_step {} is after the last step, {}: there will be no table",
                                      c.log.flops_step, c.train.steps));
  if (c.log.name.find_first_of("/\\") != std::string::npos || c.log.name == "." || c.log.name == ".." ||
      printable(c.log.name) != c.log.name)
    rules.bad(
        "log.name",
        fmt::format("\"{}\" is not the name of a folder: expected no slash, newline, tab or other control character",
                    printable(c.log.name)),
        "the folder above it is log.dir");
}

}  // namespace gt
