#include "launch/ranks.h"
#include "launch/signals.h"
#include "launch/trainer.h"
#include "launch/verbs.h"

namespace gt {

Exit run_train(const Command& command) {
  const auto& args = command.get<TrainArgs>();
  TrainRun run;
  run.loaded = command.loaded;
  run.command = "gpttrain";
  for (const std::string& w : command.words) run.command += " " + w;
  run.dry_run = args.dry_run;
  run.quiet = args.quiet;
  run.force = args.force;
  return run_ranks(command, [&run](GroupFactory& factory) {
    install_stop_signals();
    Trainer trainer(run, factory);
    return trainer.run();
  });
}

}  // namespace gt
