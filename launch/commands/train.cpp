#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "checkpoint/store/steps.h"
#include "kernels/core/text.h"
#include "launch/commands/subcommand_args.h"
#include "launch/commands/subcommands.h"
#include "launch/commands/text_data.h"
#include "launch/observe/sinks/console.h"
#include "launch/ranks/agree.h"
#include "launch/ranks/rank_consistency.h"
#include "launch/ranks/ranks.h"
#include "launch/ranks/signals.h"
#include "launch/ranks/start/sbatch.h"
#include "launch/ranks/start/supervisor.h"
#include "launch/tools/report/report_sink.h"
#include "launch/tools/weights/import.h"
#include "launch/train/dry_run.h"
#include "launch/train/trainer.h"

namespace gt {
namespace {

// Turns the run into a range test: its own folder, no resume, a rate that grows steadily.
void make_range_test(TrainRun& run) {
  Config& c = run.loaded.config;
  if (c.schedule.type != "lr_range_test") {
    constexpr double kBegin = 0.01, kEnd = 10;  // factors of optim.lr
    c.schedule = ScheduleConfig{};
    c.schedule.type = "lr_range_test";
    c.schedule.start_lr = kBegin * c.optim.lr;
    c.schedule.range_steps = std::max<int64_t>(1, c.train.steps - 1);
    c.schedule.range_rate = kEnd / kBegin - 1;
  }
  c.log.name += "-lr-range";
  c.checkpoint.dir.clear();
  c.checkpoint.resume = "never";
  run.range_test = run.force = true;
}

// Rejects flags that cannot be combined with --from.
void refuse_with_from(const TrainArgs& args, const Config& c) {
  const auto refuse = [](bool given, const char* what, const char* fix) {
    GT_REQUIRE(!given, Exit::kUsage, "--from: not with ", what, "; ", fix);
  };
  refuse(c.checkpoint.resume != "auto", "--checkpoint.resume, which starts elsewhere", "leave one of them out");
  refuse(args.print_sbatch > 0, "--print-sbatch, whose job would start over when it is requeued",
         "use gpttrain import first");
  refuse(args.lr_range_test, "--lr_range_test, which starts from random weights", "leave one of them out");
}

void require_new_run(const std::string& dir) {
  if (const auto there = list_steps(dir); !there.empty())
    fail(Exit::kUsage, "--from: ", dir, " holds step ", there.front().first,
         " of a run already. To continue it, leave --from out: gpttrain --config ",
         shell_word(there.front().second + "/config.json"), "; to start a new one, give another --log.name");
}

// Tokenizes text before the weights are read: data that cannot be read ends the program before hours of copying.
void prepare_text_before(Config c) {
  require_new_run(c.checkpoint_dir());
  tokenize_text_data(c);
}

// Writes the folder's weights as step 0 of the run, from which it then resumes.
void start_from(const TrainArgs& args, const Config& c) {
  const std::string dir = c.checkpoint_dir();
  require_new_run(dir);
  const Imported made = import_weights(
      {.from = args.from, .output = dir, .tokenizer = c.data.tokenizer, .ignore_unknown = args.ignore_unknown}, &c);
  for (const std::string& w : made.warnings) fmt::print(stderr, "warning: {}\n", printable_lines(w));
  if (!args.quiet)
    fmt::print("from      {}: read {} of {} tensors, {} parameters, as {}\n", args.from, made.read, made.in_source,
               format_thousands(made.parameters), made.path);
  std::fflush(stdout);
}

// Under another launcher rank 0 does it, and the others wait.
void start_from(const TrainArgs& args, const Config& c, GroupFactory& factory) {
  std::vector<int> everybody(static_cast<size_t>(factory.world_size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  const auto world = factory.make(everybody);
  agree(*world, [&] {
    if (world->rank() == 0) start_from(args, c);
  });
}

// Returns the command that would start the run.
Command without_dry_run(Command command) {
  std::erase_if(command.words, [](const std::string& w) { return w == "--dry-run" || w == "--dry_run"; });
  return command;
}

// `text`: data.train names text files, which are mock data in the run.
Exit show_dry_run(const Command& command, const TrainRun& run, bool text) {
  if (command.env.launched() && command.env.rank > 0) return Exit::kOk;  // rank 0 reports for all
  Rows rows = dry_run(run.loaded, command.env, run.range_test, run.force);
  for (auto& [name, value] : rows)
    if (text && name == "data") value = "text files, prepared when the run starts";
  if (std::string start = start_command(without_dry_run(command)); !start.empty())
    rows.insert(rows.begin(), {"start", std::move(start)});
  if (!run.quiet) fmt::print("{}\n", block(rows));
  fmt::print("dry run: nothing was started\n");
  return Exit::kOk;
}

}  // namespace

Exit run_train(const Command& command) {
  const auto& args = command.get<TrainArgs>();
  const bool starts = !args.from.empty() && !started_by_launch_ranks();
  if (starts) refuse_with_from(args, command.loaded.config);
  if (args.print_sbatch > 0) return fmt::print("{}", sbatch_script(command, args.print_sbatch)), Exit::kOk;
  if (!args.dry_run) install_stop_signals(), survive_console();
  // Once for the job, before ranks or a supervisor exist; under another launcher rank 0 does it below.
  if (starts && !args.dry_run && !command.env.launched()) {
    prepare_text_before(command.loaded.config);
    start_from(args, command.loaded.config);
  }
  if (!args.dry_run && !args.lr_range_test && needs_supervisor(command)) return static_cast<Exit>(supervise(command));
  TrainRun run;
  run.loaded = command.loaded;
  run.command = "gpttrain";
  for (const std::string& w : command.words) run.command += " " + w;
  run.quiet = args.quiet;
  run.force = args.force;
  run.report_sink = [](int64_t every) { return std::make_unique<ReportSink>(every); };
  if (args.lr_range_test) make_range_test(run);
  if (args.dry_run) {
    const bool text = replace_text_by_mock(run.loaded.config);
    return show_dry_run(command, run, text);
  }
  tokenize_text_data(run.loaded.config);
  return run_ranks(command, [&](GroupFactory& factory) {
    require_same_program(run.loaded.config, factory);
    if (starts && command.env.launched()) start_from(args, run.loaded.config, factory);
    Trainer trainer(run, factory);
    return trainer.run();
  });
}

}  // namespace gt
