// gpttrain schedule: prints what each pipeline rank does in a step, its timeline, bubble and memory, without running anything.
#include <fmt/format.h>

#include "launch/console.h"
#include "launch/verbs.h"
#include "parallel/pipeline/simulate.h"

namespace gt {
namespace {

Cost parse_cost(const std::string& text) {
  Cost c;
  char comma = 0, rest = 0;
  std::istringstream in(text);
  GT_REQUIRE(in >> c.f >> comma >> c.b && comma == ',' && !(in >> rest) && c.f > 0 && c.b > 0, Exit::kUsage, "--cost: expected two times ",
             "above 0, forward and backward, as in 1,2; found \"", text, "\"");
  c.i = c.w = c.b / 2;
  return c;
}

}  // namespace

Exit run_schedule(const Command& command) {
  const auto& args = command.get<ScheduleArgs>();
  const Config& config = command.loaded.config;
  const int p = static_cast<int>(config.parallel.pp), v = static_cast<int>(config.parallel.vpp);
  const int m = static_cast<int>(args.microbatches > 0 ? args.microbatches : 2 * p);
  const Cost cost = parse_cost(args.cost);
  const Schedule s = make_schedule(config.parallel.schedule, p, v, m, config.model.tied);
  const Report r = simulate(s, cost);
  fmt::print("{} schedule, {} stages, {} microbatches (F B I W compute, F> F< B> B< send and receive, G reduce gradients, T tied)\n\n",
             s.name, s.stages, m);
  for (int k = 0; k < p; ++k) fmt::print("r{} {}\n", k, to_string(s.program[static_cast<size_t>(k)]));
  fmt::print("\n{}\n", gantt(r, std::max(40, terminal_width() - 4)));
  std::string peaks;
  for (int n : r.peak_in_flight) peaks += fmt::format("{}{}", peaks.empty() ? "" : " ", n);
  fmt::print("bubble {:.1f} %, makespan {:g}, microbatches in flight by rank: {}\n", 100 * r.bubble, r.makespan, peaks);
  return Exit::kOk;
}

}  // namespace gt
