// gpttrain schedule: prints what each pipeline rank does in a step, its timeline, bubble and memory, without running
// anything. Knows every schedule that parallel/pipeline knows, also those that a training run does not take yet.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "launch/console.h"
#include "launch/output.h"
#include "launch/verbs.h"
#include "parallel/pipeline/simulate.h"

namespace gt {
namespace {

constexpr int kPaperWidth = 100;  // of the timeline where there is no terminal

bool is_compute(Act a) {
  return a == Act::kForward || a == Act::kBackward || a == Act::kBackwardInput || a == Act::kBackwardWeight;
}

// A schedule of compute actions only gets its messages and reductions; a complete one stays as it is.
Schedule read_schedule_file(const std::string& path, bool tied) {
  std::ifstream in(path, std::ios::binary);
  GT_REQUIRE(in, Exit::kUsage, "--schedule: ", path, ": cannot be read; expected a text file, one line a rank");
  std::string text(size_t{16} << 20, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  GT_REQUIRE(in.eof(), Exit::kUsage, "--schedule: ", path, ": more than 16 MiB; a schedule is one line a rank");
  text.resize(static_cast<size_t>(in.gcount()));
  Schedule s = parse_schedule(text);
  s.name = path;
  bool compute_only = true;
  for (const Program& p : s.program)
    compute_only = compute_only && std::all_of(p.begin(), p.end(), [](Action a) { return is_compute(a.act); });
  GT_REQUIRE(compute_only || !tied, Exit::kUsage,
             "--tied adds actions to schedules of compute actions only; this one has messages: write its T yourself");
  if (compute_only) {
    add_reduce_grads(s, tied);
    add_send_recv(s);
  }
  return s;
}

void require_same(const char* flag, int64_t given, int64_t found, const std::string& path) {
  GT_REQUIRE(given == 0 || given == found, Exit::kUsage, "--", flag, " ", given, ": ", path, " has ", found,
             "; leave the flag out");
}

Schedule schedule_of(const ScheduleArgs& a) {
  if (a.schedule.rfind("file:", 0) == 0) {
    const std::string path = a.schedule.substr(5);
    try {
      Schedule s = read_schedule_file(path, a.tied);
      require_same("pp", a.pp, s.ranks, path);
      require_same("vpp", a.vpp, s.stages / s.ranks, path);
      require_same("microbatches", a.microbatches, s.microbatches, path);
      simulate(s);  // its errors belong to the file
      return s;
    } catch (const Error& e) {
      const std::string what = e.what();
      if (what.find(path) != std::string::npos) throw;
      throw Error(path + ": " + what, e.code());
    }
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
