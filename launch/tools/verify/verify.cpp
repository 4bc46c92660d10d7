// gpttrain verify: validates a layout. Trains a shrunk version of the user's model for a few steps on one rank and on
// the layout, and compares everything that must be equal.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "kernels/core/rng.h"
#include "launch/engine/engine_options.h"
#include "launch/engine/prove_layout.h"
#include "launch/engine/rank_device.h"
#include "launch/observe/sinks/progress.h"
#include "launch/options/output.h"
#include "launch/ranks/device_groups.h"
#include "launch/ranks/ranks.h"
#include "launch/tools/verify/layouts.h"
#include "launch/tools/verify/report.h"
#include "launch/tools/verify/shrink.h"
#include "launch/tools/verify/subcommands.h"
#include "parallel/comm/host_values.h"

namespace gt {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

// Returns the shrunk, checked config. A rule that it violates would be violated by the given config too.
Config small_config(const Config& given, const ShrinkGoal& goal, std::vector<std::string>& notes) {
  const CheckedLayout small = check_layout(shrink(given, goal, notes), {});
  Problems all;
  for (const Problem& p : small.problems) all.add(p.where, p.key, p.reason + " (of the shrunk model)", p.fix);
  all.throw_if_any();
  return small.config;
}

std::string heading(const Config& c, const std::vector<std::string>& notes, int steps) {
  std::string out;
  if (!notes.empty()) out += fmt::format("shrunk: {}\n", fmt::join(notes, ", "));
  out += fmt::format(
      "model: {} blocks of width {}, {} heads{}, ffn {}, vocabulary {}, {} tokens, {}; {} steps of {} sequences\n",
      c.model.layers, c.model.hidden, c.model.heads,
      c.model.kv_heads == c.model.heads ? "" : fmt::format(" ({} KV heads)", c.model.kv_heads), c.model.ffn,
      c.model.vocab, c.model.seq, c.model.tied ? "tied" : "untied", steps, c.train.global_batch);
  return out;
}

std::string layout_block(const Config& c, const char* where) {
  std::string out = fmt::format("layout: {}, {} ranks ({})\n", layout_text(c), c.world(), where);
  if (c.parallel.pp == 1) return out;
  const PipelineSchedule s = train_schedule(engine_options(c, 1), static_cast<int>(c.parallel.pp));
  for (size_t k = 0; k < s.program.size(); ++k) out += fmt::format("  r{} {}\n", k, to_string(s.program[k]));
  return out;
}

Exit print_result(const Config& c, const VerifyResult& v) {
  write_out(report(c, v));
  flush_out();
  return v.bad() == nullptr ? Exit::kOk : Exit::kNumerical;
}

VerifyResult of_device(VerifyResult v) {
  v.exact.clear();
  v.bits = false;
  return v;
}

// Runs layouts on the device that training would use, shared by all ranks of this process; references run on the CPU.
class OnDevice {
 public:
  explicit OnDevice(const Config& c) : backend_(choose_backend(c)) {
    hooks_.backend = &backend_;
    hooks_.wrap = [this, c](GroupFactory& threads) {
      return device_groups(c, threads, backend_, 0, threads.world_size()).factory;
    };
  }
  VerifyResult check(Verifier& verifier, const Config& c) const {
    if (backend_.kind == DeviceKind::kCpu) return verifier.check(c);
    VerifyResult v = verifier.check(c, &hooks_);
    return of_device(std::move(v));
  }

 private:
  const Backend& backend_;
  MeshHooks hooks_;
};

Exit verify_threads(const Config& c, const VerifyArgs& args) {
  Verifier verifier({static_cast<int>(args.steps)});
  return print_result(c, OnDevice(c).check(verifier, c));
}

// Launched ranks train; rank 0 has the reference and prints the result, whose exit code all ranks return.
Exit verify_here(const Config& c, const VerifyArgs& args, GroupFactory& factory) {
  GT_REQUIRE(c.device.gemm_tune != GemmTune::kAuto, Exit::kUsage,
             "device.gemm_tune: auto: verify times nothing when ranks are ",
             "processes. Give it the table of a run, RUN/gemm-plans-1.txt, with --device.gemm_plans");
  RankDevice device(c, factory);
  const Backend& backend = device.backend();
  Verifier verifier({static_cast<int>(args.steps)});
  const MeshResult run = run_mesh_here(verifier.run_of(c), device.groups(), backend, device.index());
  std::vector<int> everyone(static_cast<size_t>(factory.world_size()));
  for (size_t r = 0; r < everyone.size(); ++r) everyone[r] = static_cast<int>(r);
  const auto world = factory.make(everyone);
  int32_t code = 0;
  if (factory.world_rank() == 0) {
    VerifyResult v = verifier.compare_run(c, run);
    if (backend.kind != DeviceKind::kCpu) v = of_device(std::move(v));
    code = static_cast<int32_t>(print_result(c, v));
  }
  return static_cast<Exit>(broadcast_value(*world, code));
}

// Returns `n` of them, drawn by the seed, in the original order.
std::vector<Config> sample_of(std::vector<Config> all, int64_t n, uint64_t seed) {
  const auto total = static_cast<int64_t>(all.size());
  if (n == 0 || n >= total) return all;
  std::vector<Config> out;
  const uint64_t key = stream_key(seed, "verify/sample");
  for (int64_t i = 0, left = n; i < total; ++i)
    if (static_cast<int64_t>(philox(key, static_cast<uint64_t>(i), 0)[0] % static_cast<uint64_t>(total - i)) < left)
      out.push_back(std::move(all[static_cast<size_t>(i)])), --left;
  return out;
}

struct MatrixSum {
  size_t done = 0, wrong = 0;
  double gradient = 0, loss = 0;
  std::string gradient_at;
  void add(const Config& c, const VerifyResult& v) {
    ++done;
    wrong += v.bad() != nullptr;
    for (const Difference& d : v.close) {
      if (d.quantity == Quantity::kLoss && d.step == 1) loss = std::max(loss, d.error);
      if (d.quantity != Quantity::kGradient || d.error <= gradient) continue;
      gradient = d.error;
      gradient_at = fmt::format("{} of {}", d.name, layout_text(c));
    }
  }
};

// Returns what is wrong with a layout by the types of its tensors; "" if it is proved.
std::string wrong_by_types(const EngineOptions& o, const MeshShape& mesh, ProofSize* size = nullptr) {
  try {
    const ProofSize n = prove_layout(o, mesh);
    if (size != nullptr) *size = n;
    return "";
  } catch (const proof::LayoutError& e) { return e.what() + code_of(e, o, mesh); }
}

// Returns what of a run has no types, and how it is proved instead; "" if all has.
std::string untyped_note(const EngineOptions& o) {
  const Untyped no = untyped(o);
  return cat(no.fp8 ? "note: FP8 has no types; proved as a run in 16 bits\n" : "",
             no.muon ? "note: Muon has no types; proved as a run with AdamW\n" : "");
}

Exit verify_types(const Config& c) {
  ProofSize size;
  const EngineOptions options = engine_options(c, 1);
  const auto begin = Clock::now();
  const std::string wrong = wrong_by_types(options, mesh_shape(c), &size);
  write_out(fmt::format("layout: {}, {} ranks\n{}", layout_text(c), c.world(), untyped_note(options)));
  write_out(wrong.empty() ? fmt::format("proved in {}: {} calls of ops and {} collectives and messages of one rank of "
                                        "each stage, in two steps and an evaluation\n",
                                        format_duration(since(begin)), size.ops, size.messages)
                          : fmt::format("WRONG: {}\n", wrong));
  flush_out();
  return wrong.empty() ? Exit::kOk : Exit::kNumerical;
}

// Every layout runs, whatever fails: which ones differ points to the cause, the first alone does not.
Exit verify_matrix(const Config& base, const VerifyArgs& args, bool precisions) {
  const std::vector<Config> legal = legal_layouts(base, args.ranks, precisions);
  const std::vector<Config> layouts = sample_of(legal, args.sample, static_cast<uint64_t>(base.train.seed));
  write_out(fmt::format("{} legal layouts of up to {} ranks, {} of them to {}\n{}", legal.size(), args.ranks,
                        layouts.size(), args.types ? "prove" : "run",
                        args.types ? untyped_note(engine_options(base, 1)) : ""));
  flush_out();
  Verifier verifier({static_cast<int>(args.steps)});
  const OnDevice device(base);
  WorkLine line;
  MatrixSum sum;
  const auto begin = Clock::now();
  double shown = line.terminal() ? -1 : 0;
  for (const Config& c : layouts) {
    if (const double now = since(begin); now - shown >= line.seconds()) {
      const double rest =
          sum.done ? now / static_cast<double>(sum.done) * static_cast<double>(layouts.size() - sum.done) : 0;
      line.show(fmt::format("{}/{}  {} wrong  {}  eta {}", sum.done, layouts.size(), sum.wrong, layout_text(c),
                            sum.done ? format_duration(rest) : "n/a"));
      shown = now;
    }
    std::string failure;
    try {
      if (args.types) {
        failure = wrong_by_types(engine_options(c, 1), mesh_shape(c));
        ++sum.done, sum.wrong += !failure.empty();
      } else {
        const VerifyResult v = device.check(verifier, c);
        sum.add(c, v);
        if (const Difference* d = v.bad()) failure = describe(*d, mesh_shape(c));
      }
    } catch (const Error& e) {
      ++sum.done, ++sum.wrong;
      failure = e.what();
    }
    if (failure.empty()) continue;
    line.erase();
    write_out(fmt::format("{}  {}: {}\n", args.types ? "WRONG" : "DIFFERENT", layout_text(c), failure));
    flush_out();
  }
  line.erase();
  if (args.types) {
    write_out(fmt::format("{} layouts in {}: {} proved, {} wrong\n", sum.done, format_duration(since(begin)),
                          sum.done - sum.wrong, sum.wrong));
    flush_out();
    return sum.wrong == 0 ? Exit::kOk : Exit::kNumerical;
  }
  write_out(fmt::format("{} layouts in {}, {} reference runs: {} equal, {} different\n", sum.done,
                        format_duration(since(begin)), verifier.reference_runs(), sum.done - sum.wrong, sum.wrong));
  write_out(fmt::format("largest relative errors: loss of the first step {:.1e}, gradient {:.1e} ({})\n", sum.loss,
                        sum.gradient, sum.gradient_at.empty() ? "none" : sum.gradient_at));
  flush_out();
  return sum.wrong == 0 ? Exit::kOk : Exit::kNumerical;
}

}  // namespace

Exit run_verify(const Command& command) {
  const auto& args = command.get<VerifyArgs>();
  const Config& given = command.loaded.config;
  const bool here = args.on == "here", is_rank0 = !here || !command.env.launched() || command.env.rank == 0;
  GT_REQUIRE(here || !command.env.launched(), Exit::kUsage,
             "gpttrain verify --on threads runs all ranks in one process, ", "but a launcher started this one as rank ",
             command.env.rank, "; use --on here, or start it alone");
  GT_REQUIRE(!(here && args.matrix), Exit::kUsage, "--matrix runs many layouts, but --on here has the ranks of one; ",
             "use --on threads");
  GT_REQUIRE(args.matrix || args.sample == 0, Exit::kUsage, "--sample ", args.sample, " belongs to --matrix");
  GT_REQUIRE(!here || !args.types, Exit::kUsage, "--static runs no rank; leave out --on here");
  GT_REQUIRE(!args.types || args.steps == VerifyArgs().steps, Exit::kUsage, "--steps ", args.steps,
             " has no effect with --static, which trains nothing; leave it out");
  if (args.types && !args.matrix) return verify_types(given);
  ShrinkGoal goal = args.matrix ? goal_of(given, args.ranks) : goal_of(given);
  goal.steps = static_cast<int>(args.steps);
  std::vector<std::string> notes;
  Config base = given;
  if (args.matrix) base.parallel = ParallelConfig(), base.parallel.dp = 1;
  const Config small = small_config(base, goal, notes);
  // A parent about to start ranks leaves the output to rank 0.
  const bool starts = here && !command.env.launched() && given.world() > 1 && given.launch.ranks != RankKind::kThreads;
  if (is_rank0 && !starts) write_out(heading(small, notes, goal.steps));
  set_cpu_may_spin(false);  // more threads than cores are normal here
  const auto is_given = [&](const char* key) { return command.loaded.origin.count(key) > 0; };
  if (args.matrix) return verify_matrix(small, args, !is_given("precision.amp") && !is_given("precision.dtype"));
  if (is_rank0 && !starts) write_out(layout_block(small, here ? "launched" : "threads of this process"));
  if (is_rank0 && !starts) flush_out();
  if (!here) return verify_threads(small, args);
  return run_ranks(command, [&](GroupFactory& factory) { return verify_here(small, args, factory); });
}

}  // namespace gt
