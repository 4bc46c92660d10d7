// gpttrain schedule: prints the actions of each pipeline rank in a step, the timeline, bubble and memory, without
// running anything.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/core/files.h"
#include "kernels/core/json.h"
#include "kernels/core/json_field.h"
#include "launch/commands/subcommand_args.h"
#include "launch/commands/subcommands.h"
#include "launch/config/values/schedule_file.h"
#include "launch/observe/measured_times.h"
#include "launch/observe/predict.h"
#include "launch/observe/sinks/console.h"
#include "launch/observe/trace/trace_json.h"
#include "launch/options/near_word.h"
#include "launch/options/output.h"
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
  return make_schedule(a.schedule, pp, vpp, static_cast<int>(a.microbatches ? a.microbatches : 2 * pp), a.tied,
                       static_cast<int>(a.extra_in_flight));
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

// Sets transfers from the messages between pipeline neighbours in a result of `bench comm`, in milliseconds.
void read_transfers(const ScheduleArgs& a, Cost& cost) {
  constexpr int64_t kMost = 16 << 20;
  GT_REQUIRE(a.boundary_bytes > 0 && (a.tied_bytes > 0 || !a.tied), Exit::kUsage,
             "--comm needs --boundary_bytes, and with --tied --tied_bytes: see the traffic line of a run");
  MeasuredTimes times{{}};
  bool found = false;
  try {
    const auto result =
        parse_json<nlohmann::json>(read_whole_file(a.comm, kMost), a.comm, {.code = Exit::kDamaged, .bytes = kMost});
    for (const auto& call : result.at("calls")) {
      if (call.at("group") != "pp") continue;
      found = true;
      times.set("", CommOp::kSend, 2, field<int64_t>(call, "bytes"), call.at("seconds").at("median").get<double>());
    }
  } catch (const nlohmann::json::exception& e) {
    fail(Exit::kDamaged, a.comm, ": no result of `gpttrain bench comm --out`: ", e.what());
  }
  GT_REQUIRE(found, Exit::kUsage, a.comm, ": no messages between pipeline ranks: measure with --pp 2");
  cost.p2p = 1e3 * times.seconds("", CommOp::kSend, 2, 1);  // of the smallest message
  const auto wire = [&](int64_t bytes) {
    return std::max(0., 1e3 * times.seconds("", CommOp::kSend, 2, static_cast<double>(bytes)) - cost.p2p);
  };
  cost.wire = wire(a.boundary_bytes);
  if (a.tied) cost.tied = wire(a.tied_bytes);
}

Cost cost_of(const ScheduleArgs& a) {
  Cost cost;
  cost.f = a.cost[0];
  cost.b = a.cost[1];
  cost.i = cost.w = cost.b / 2;
  cost.p2p = a.transfer;
  cost.wire = a.wire;
  cost.tied = a.tied ? a.tied_wire : 0;
  if (!a.comm.empty()) read_transfers(a, cost);
  return cost;
}

bool has_transfers(const Cost& c) { return c.p2p > 0 || c.wire > 0 || c.tied > 0; }

std::string transfer_text(const Cost& c) {
  if (!has_transfers(c)) return "";
  std::string out = fmt::format(", a transfer {:g}", c.p2p + c.wire);
  if (c.wire > 0) out += fmt::format(" ({:g} of it on the line)", c.wire);
  if (c.tied > 0) out += fmt::format(", the tied gradient {:g} on the line", c.tied);
  return out;
}

// Advice to keep more microbatches in flight: the fewest with which 1f1b is nearly as fast as with any number; "": as
// now.
std::string deeper(const PipelineSchedule& s, const ScheduleArgs& a, const Cost& cost, double now) {
  constexpr double kNearly = 1.005;
  std::vector<double> makespans;
  for (int extra = 0; extra < s.microbatches; ++extra)
    makespans.push_back(simulate(make_schedule("1f1b", s.ranks, 1, s.microbatches, a.tied, extra), cost).makespan);
  const double least = *std::min_element(makespans.begin(), makespans.end());
  const auto best = std::find_if(makespans.begin(), makespans.end(), [&](double t) { return t <= kNearly * least; });
  if (now <= kNearly * *best) return "";
  return fmt::format("--extra_in_flight {} shortens the step from {:g} to {:g}", best - makespans.begin(), now, *best);
}

Rows findings(const PipelineSchedule& s, const Report& r, const Cost& cost, const ScheduleArgs& a) {
  Rows rows{{"bubble", fmt::format("{:.1f} % of all ranks' time", 100 * r.bubble)}};
  if (has_transfers(cost)) {
    Cost free = cost;
    free.p2p = free.wire = free.tied = 0;
    const double without = simulate(s, free).makespan;
    rows.emplace_back("transfers", fmt::format("add {:g} to a step of {:g} without them: {:.1f} %",
                                               r.makespan - without, without, 100 * (r.makespan / without - 1)));
    if (const std::string advice = s.name == "1f1b" ? deeper(s, a, cost, r.makespan) : ""; !advice.empty())
      rows.emplace_back("note", advice);
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
  const Cost cost = cost_of(args);
  const Report r = simulate(s, cost);
  const int columns = terminal_width();
  std::string out = fmt::format("{}: {} ranks, {} stages, {} microbatches; a forward takes {:g}, a backward {:g}{}\n\n",
                                s.name, s.ranks, s.stages, s.microbatches, cost.f, cost.b, transfer_text(cost));
  out += programs(s) + gantt(r, columns > 0 ? std::max(40, columns - 1) : kPaperWidth);
  if (out.back() != '\n') out += '\n';
  out += "digit forward, letter backward, capital weights only, '.' idle\n\n";
  Rows rows = findings(s, r, cost, args);
  if (!args.trace.empty()) {
    write_trace(args.trace, s, r);
    rows.emplace_back("trace", args.trace + " (open it in ui.perfetto.dev or chrome://tracing)");
  }
  write_out(out + block(rows));
  flush_out();
  return Exit::kOk;
}

}  // namespace gt
