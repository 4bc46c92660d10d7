// A run resumed under another layout follows the loss curve of its own layout.
#include <cmath>
#include <random>

#include "kernels/core/check.h"
#include "tests/launch/process.h"
#include "tests/support/goal.h"
#include "tests/support/test.h"

using namespace gt;

TEST_CASE("a checkpoint of one layout trains on under another one: the first loss and the curve are the same",
          "[R09]") {
  const std::string run =
      "--model.layers 4 --model.hidden 32 --model.heads 4 --model.vocab 301 --model.seq 16 --data.train mock "
      "--train.global_batch 16 --train.micro_batch 1 --device.kind cpu --log.tensorboard false --schedule.type "
      "constant "
      "--launch.ranks threads ";
  const std::vector<std::string> layouts = {"--tp 2 --pp 2",
                                            "--dp 4 --zero 3",
                                            "--tp 4",
                                            "--pp 4 --parallel.schedule zb-h1",
                                            "--dp 2 --pp 2 --zero 1",
                                            "--tp 2 --dp 2 --zero 2",
                                            "--tp 2 --pp 2 --dp 2 --zero 0",
                                            "--dp 8 --zero 1",
                                            "--tp 1"};
  const int pairs = goal_size(kSanitized ? 1 : 8, 40);
  std::mt19937_64 random(goal_seed());
  double first = 0, far = 0;
  for (int k = 0; k < pairs; ++k) {
    const std::string &from = layouts[random() % layouts.size()], &to = layouts[random() % layouts.size()];
    TempDir dir;
    const auto train = [&](const std::string& layout, const std::string& name, int steps) {
      const Outcome r = gpttrain(run + layout + cat(" --log.name ", name, " --train.steps ", steps), dir.path());
      INFO(layout << "\n" << r.out);
      REQUIRE(r.code == 0);
    };
    train(from, "a", 4);
    std::filesystem::copy(dir / "runs/a", dir / "runs/b", std::filesystem::copy_options::recursive);
    train(from, "a", 24);
    train(to, "b", 24);
    const std::vector<double> own = logged(dir / "runs/a", "loss"), other = logged(dir / "runs/b", "loss");
    REQUIRE(own.size() == 24);
    REQUIRE(other.size() == 24);
    INFO(from << " to " << to);
    for (size_t i = 4; i < 24; ++i) {
      const double off = std::abs(own[i] - other[i]) / own[i];
      CHECK(off <= (i == 4 ? 1e-6 : 1e-4));
      (i == 4 ? first : far) = std::max(i == 4 ? first : far, off);
    }
  }
  char text[160];
  std::snprintf(
      text, sizeof text,
      "%d pairs of layouts: first loss after the reshard off by %.1e at most (goal 1e-6), 20 steps by %.1e (goal 1e-4)",
      pairs, first, far);
  print_figure("R09", text);
}
