#include <fmt/format.h>

#include <algorithm>

#include "launch/commands/subcommands.h"
#include "launch/commands/text_data.h"
#include "launch/observe/sinks/console.h"
#include "launch/ranks/rank_consistency.h"
#include "launch/ranks/ranks.h"
#include "launch/ranks/signals.h"
#include "launch/ranks/start/sbatch.h"
#include "launch/ranks/start/supervisor.h"
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

// Returns the command that would start the run.
Command without_dry_run(Command command) {
  std::erase_if(command.words, [](const std::string& w) { return w == "--dry-run" || w == "--dry_run"; });
  return command;
}

Exit show_dry_run(const Command& command, const TrainRun& run) {
  if (command.env.launched() && command.env.rank > 0) return Exit::kOk;  // rank 0 reports for all
  Rows rows = dry_run(run.loaded, command.env, run.range_test, run.force);
  if (std::string start = start_command(without_dry_run(command)); !start.empty())
    rows.insert(rows.begin(), {"start", std::move(start)});
  if (!run.quiet) fmt::print("{}\n", block(rows));
  fmt::print("dry run: nothing was started\n");
  return Exit::kOk;
}

}  // namespace

Exit run_train(const Command& command) {
  const auto& args = command.get<TrainArgs>();
  if (args.print_sbatch > 0) return fmt::print("{}", sbatch_script(command, args.print_sbatch)), Exit::kOk;
  if (!args.dry_run) install_stop_signals();
  if (!args.dry_run && !args.lr_range_test && wants_supervisor(command)) return static_cast<Exit>(supervise(command));
  TrainRun run;
  run.loaded = command.loaded;
  run.command = "gpttrain";
  for (const std::string& w : command.words) run.command += " " + w;
  run.quiet = args.quiet;
  run.force = args.force;
  if (args.lr_range_test) make_range_test(run);
  if (args.dry_run) {
    if (replace_text_by_mock(run.loaded.config)) fmt::print("data      text files, prepared when the run starts\n");
    return show_dry_run(command, run);
  }
  tokenize_text_data(run.loaded.config);
  return run_ranks(command, [&run](GroupFactory& factory) {
    require_same_program(run.loaded.config, factory);
    Trainer trainer(run, factory);
    return trainer.run();
  });
}

}  // namespace gt
