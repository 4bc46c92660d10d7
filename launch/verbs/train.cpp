#include <fmt/format.h>

#include <algorithm>

#include "launch/ranks/alike.h"
#include "launch/ranks/ranks.h"
#include "launch/ranks/signals.h"
#include "launch/ranks/spawn.h"
#include "launch/ranks/supervisor.h"
#include "launch/train/trainer.h"
#include "launch/verbs/verbs.h"

namespace gt {
namespace {

// A run beside the one that the config describes: its own folder, nothing to resume, a rate that grows evenly.
void make_range_test(TrainRun& run) {
  Config& c = run.loaded.config;
  if (c.schedule.type != "lr_range_test") {
    constexpr double kBegin = 0.01, kEnd = 10;  // of optim.lr
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

}  // namespace

Exit run_train(const Command& command) {
  const auto& args = command.get<TrainArgs>();
  if (!args.dry_run && !args.lr_range_test && wants_supervisor(command)) return static_cast<Exit>(supervise(command));
  TrainRun run;
  run.loaded = command.loaded;
  run.command = "gpttrain";
  for (const std::string& w : command.words) run.command += " " + w;
  run.dry_run = args.dry_run;
  run.quiet = args.quiet;
  run.force = args.force;
  if (args.lr_range_test) make_range_test(run);
  if (const std::string start = args.dry_run ? start_command(command) : ""; !start.empty()) {
    fmt::print("start     {}\n", start);
    if (!only_here(chosen_hosts(run.loaded.config.launch))) {  // whom a dry run leaves alone
      fmt::print("dry run: nothing was started; the layout's memory and speed are said by a dry run without hosts\n");
      return Exit::kOk;
    }
  }
  return run_ranks(command, [&run](GroupFactory& factory) {
    install_stop_signals();
    require_same_program(run.loaded.config, factory);
    Trainer trainer(run, factory);
    return trainer.run();
  });
}

}  // namespace gt
