// gpttrain schedule: prints the actions of each pipeline rank in a step, the timeline, bubble and memory, without
// running anything.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "launch/commands/output.h"
#include "launch/commands/subcommands.h"
#include "launch/config/schedule_file.h"
#include "launch/observe/predict.h"
#include "launch/observe/sinks/console.h"
#include "launch/observe/trace/trace_json.h"
#include "parallel/pipeline/simulate.h"

namespace gt {
namespace {

constexpr int kPaperWidth = 100;  // timeline width if the output is not a terminal

void require_same(const char* flag, int64_t given, int64_t found, const std::string& file) {
  GT_REQUIRE(given == 0 || given == found, Exit::kUsage, "--", flag, " ", given, ": ", file, " has ", found,
             "; leave the flag out");
}

PipelineSchedule schedule_of(const ScheduleArgs& a) {
  if (is_schedule_file(a.schedule)) {
    const PipelineSchedule s = read_schedule_file(a.schedule, a.tied);
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

std::string programs(const PipelineSchedule& s) {
  std::string out;
  for (size_t k = 0; k < s.program.size(); ++k) out += fmt::format("r{} {}\n", k, to_string(s.program[k]));
  out += '\n';
  return out +
         "<stage><action><microbatch>: F forward, B backward (I its inputs, W its weights), F> F< send and receive an\n"
         "activation, B> B< its gradient, G reduce gradients, T add the gradients of shared weights\n\n";
}

std::string peaks(const Report& r) {
  std::string out;
  for (size_t k = 0; k < r.peak_in_flight.size(); ++k)
    out += fmt::format("{}r{} {}", k ? ", " : "", k, r.peak_in_flight[k]);
  return out;
}

bool splits_backward(const PipelineSchedule& s) {
  for (const Program& p : s.program)
    for (const Action& a : p)
      if (a.act == Act::kBackwardWeight) return true;
  return false;
}

Rows findings(const PipelineSchedule& s, const Report& r, const Cost& cost) {
  Rows rows{{"bubble", fmt::format("{:.1f} % of all ranks' time", 100 * r.bubble)}};
  if (cost.p2p > 0) {
    Cost free = cost;
    free.p2p = 0;
    const double without = simulate(s, free).makespan;
    rows.emplace_back("transfers", fmt::format("add {:g} to a step of {:g} without them: {:.1f} %",
                                               r.makespan - without, without, 100 * (r.makespan / without - 1)));
  }
  rows.emplace_back("in flight", peaks(r) + (s.stages > s.ranks ? " chunks'" : " microbatches'") +
                                     std::string(" activations at once"));
  if (r.bubble > kMuchBubble)
    rows.emplace_back(
        "warning",
        fmt::format("bubble above {:.0f} %: use more microbatches, fewer ranks or more chunks per rank (interleaved)",
                    100 * kMuchBubble));
  if (splits_backward(s))
    rows.emplace_back("note", "activations are kept until W, recomputed ones with parallel.recompute too");
  return rows;
}

void write_trace(const std::string& path, const PipelineSchedule& s, const Report& r) {
  const auto traces = simulated_trace(s, r);
  const std::string json = trace_json(traces, {.other = {{"schedule", s.name}, {"clock", "simulated, 1 unit = 1 ms"}}});
  if (path.size() > 3 && path.compare(path.size() - 3, 3, ".gz") == 0) return write_gzip(path, json);
  std::ofstream out(path, std::ios::binary);
  out << json;
  out.close();
  GT_REQUIRE(out.good(), Exit::kIo, path, ": cannot be written");
}

// Checks that a file is a training schedule; the thrown error describes what is wrong.
Exit check_file(const ScheduleArgs& a) {
  const PipelineSchedule s = read_schedule_file(is_schedule_file(a.check) ? a.check : "file:" + a.check, a.tied);
  require_fits(s, a.pp ? a.pp : s.ranks, a.vpp ? a.vpp : s.stages / s.ranks,
               a.microbatches ? a.microbatches : s.microbatches, a.tied);
  write_out(
      fmt::format("{}: accepted: {} ranks, {} stages, {} microbatches; it fits parallel.pp {}, parallel.vpp {}, "
                  "train.grad_accum {}\n",
                  s.name, s.ranks, s.stages, s.microbatches, s.ranks, s.stages / s.ranks, s.microbatches));
  flush_out();
  return Exit::kOk;
}

}  // namespace

Exit run_schedule(const Command& command) {
  const auto& args = command.get<ScheduleArgs>();
  if (!args.check.empty()) return check_file(args);
  const PipelineSchedule s = schedule_of(args);
  Cost cost;
  cost.f = args.cost[0];
  cost.b = args.cost[1];
  cost.i = cost.w = cost.b / 2;
  cost.p2p = args.transfer;
  const Report r = simulate(s, cost);
  const int columns = terminal_width();
  std::string out = fmt::format("{}: {} ranks, {} stages, {} microbatches; a forward takes {:g}, a backward {:g}{}\n\n",
                                s.name, s.ranks, s.stages, s.microbatches, cost.f, cost.b,
                                cost.p2p > 0 ? fmt::format(", a transfer {:g}", cost.p2p) : "");
  out += programs(s) + gantt(r, columns > 0 ? std::max(40, columns - 1) : kPaperWidth);
  if (out.back() != '\n') out += '\n';
  out += "digit forward, letter backward, capital weights only, '.' idle\n\n";
  Rows rows = findings(s, r, cost);
  if (!args.trace.empty()) {
    write_trace(args.trace, s, r);
    rows.emplace_back("trace", args.trace + " (open it in ui.perfetto.dev or chrome://tracing)");
  }
  write_out(out + block(rows));
  flush_out();
  return Exit::kOk;
}

}  // namespace gt
