// 9. A run.
//
// Trainer is the loop around Engine::step: data, evaluation, checkpoints, logs, faults. A run is a Config, which flags
// and a JSON file fill; `gpttrain` adds commands, launchers and messages to what stands here.
#include <fstream>

#include "docs/tour/show.h"
#include "launch/train/trainer.h"

using namespace gt;

namespace {

Exit train(int ranks, std::vector<std::string> flags) {
  const LoadedConfig loaded = load_config({.flags = std::move(flags)});  // throws one error with all problems
  Exit exit = Exit::kInternal;
  tour::on_ranks(ranks, [&](GroupFactory& factory) {
    Trainer trainer({.loaded = loaded, .command = "the tour's last program"}, factory);
    const Exit code = trainer.run();
    if (factory.world_rank() == 0) exit = code;
  });
  return exit;
}

std::vector<std::string> steps_with_loss(const std::string& log) {
  std::vector<std::string> out;
  std::ifstream file(log);
  for (std::string line; std::getline(file, line);)
    if (line.rfind("{\"type\": \"step\"", 0) == 0) {
      const size_t at = line.find("\"loss\": ");
      out.push_back(line.substr(at, line.find(',', at) - at));
    }
  return out;
}

}  // namespace

int main() {
  const tour::ScratchFolder scratch;
  const std::string& folder = scratch.path();
  std::vector<std::string> common{
      "--model.layers",       "4",   "--model.hidden",      "32",   "--model.heads",   "4",
      "--model.vocab",        "300", "--model.seq",         "16",   "--data.train",    "mock",
      "--train.global_batch", "8",   "--train.micro_batch", "1",    "--schedule.type", "constant",
      "--device.kind",        "cpu", "--log.dir",           folder, "--launch.ranks",  "threads"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), common.begin(), common.end());
    return more;
  };

  // Eight ranks train six steps; then one rank takes over at step 6 and goes on to 10.
  tour::claim(
      train(8, with({"--tp", "2", "--pp", "2", "--dp", "2", "--train.steps", "6", "--log.name", "a"})) == Exit::kOk,
      "tp 2, pp 2, dp 2: six steps, a checkpoint, a log");
  tour::claim(train(1, with({"--train.steps", "10", "--log.name", "a"})) == Exit::kOk, "one rank resumes from it");
  // The same ten steps without a break, on one rank.
  tour::claim(train(1, with({"--train.steps", "10", "--log.name", "b"})) == Exit::kOk, "ten steps on one rank");

  const auto a = steps_with_loss(folder + "/a/log.jsonl"), b = steps_with_loss(folder + "/b/log.jsonl");
  tour::claim(a.size() == 10 && b.size() == 10, "both logs hold ten steps");
  double worst = 0;
  for (size_t k = 0; k < a.size(); ++k) {
    const double x = std::atof(a[k].c_str() + 8), y = std::atof(b[k].c_str() + 8);
    worst = std::max(worst, std::abs(x - y));
  }
  std::printf("largest difference between the two curves: %.1e\n", worst);
  tour::claim(worst < 1e-4, "the layout and the break left no trace in the losses");
}
