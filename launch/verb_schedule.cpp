// gpttrain schedule: prints what each pipeline rank does in a step, its timeline, bubble and memory, without running
// anything.
#include <fmt/format.h>

#include <algorithm>

#include "launch/console.h"
#include "launch/output.h"
#include "launch/schedule_file.h"
#include "launch/verbs.h"
#include "parallel/pipeline/simulate.h"

namespace gt {
namespace {

constexpr int kPaperWidth = 100;  // of the timeline where there is no terminal

void require_same(const char* flag, int64_t given, int64_t found, const std::string& file) {
  GT_REQUIRE(given == 0 || given == found, Exit::kUsage, "--", flag, " ", given, ": ", file, " has ", found,
             "; leave the flag out");
}

Schedule schedule_of(const ScheduleArgs& a) {
  if (is_schedule_file(a.schedule)) {
    const Schedule s = read_schedule_file(a.schedule, a.tied);
    require_same("pp", a.pp, s.ranks, s.name);
    require_same("vpp", a.vpp, s.stages / s.ranks, s.name);
    require_same("microbatches", a.microbatches, s.microbatches, s.name);
    return s;
  }
  const std::vector<std::string> known = schedule_names();
  if (std::find(known.begin(), known.end(), a.schedule) == known.end()) {
    const std::string guess = did_you_mean(a.schedule, known);
    fail(Exit::kUsage, "--schedule: expected ", fmt::format("{}", fmt::join(known, ", ")), " or file:PATH, found \"",
         a.schedule, "\"", guess.empty() ? "" : " (did you mean " + guess + "?)");
  }
  const auto pp = static_cast<int>(a.pp ? a.pp : 4);
  const auto vpp = static_cast<int>(a.vpp ? a.vpp : a.schedule == "interleaved" ? 2 : 1);
  return make_schedule(a.schedule, pp, vpp, static_cast<int>(a.microbatches ? a.microbatches : 2 * pp), a.tied);
}

}  // namespace

Exit run_schedule(const Command& command) {
  const auto& args = command.get<ScheduleArgs>();
  const Schedule s = schedule_of(args);
  Cost cost;
  cost.f = args.cost[0];
  cost.b = args.cost[1];
  cost.i = cost.w = cost.b / 2;
  const Report r = simulate(s, cost);
  const int columns = terminal_width();

  std::string out = fmt::format("{}: {} ranks, {} stages, {} microbatches; a forward takes {:g}, a backward {:g}\n\n",
                                s.name, s.ranks, s.stages, s.microbatches, cost.f, cost.b);
  for (size_t k = 0; k < s.program.size(); ++k) out += fmt::format("r{} {}\n", k, to_string(s.program[k]));
  out +=
      "\n<stage><action><microbatch>: F forward, B backward (I its inputs, W its weights), F> F< send and receive an\n"
      "activation, B> B< its gradient, G reduce gradients, T add the gradients of shared weights\n\n";
  out += gantt(r, columns > 0 ? std::max(40, columns - 1) : kPaperWidth);
  if (out.back() != '\n') out += '\n';
  out += "digit forward, letter backward, capital weights only, '.' idle\n\n";
  Rows rows{{"bubble", fmt::format("{:.1f} % of all ranks' time is idle", 100 * r.bubble)}};
  std::string peaks;
  for (size_t k = 0; k < r.peak_in_flight.size(); ++k)
    peaks += fmt::format("{}r{} {}", k ? ", " : "", k, r.peak_in_flight[k]);
  rows.emplace_back("in flight", peaks + " microbatches' activations at once");
  write_out(out + block(rows));
  flush_out();
  return Exit::kOk;
}

}  // namespace gt
