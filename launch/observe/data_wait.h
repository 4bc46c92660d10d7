// Detects training that waits for its data: more than 1 % of the time over 20 steps. Takes measured seconds as input.
#pragma once
#include <optional>
#include <string>

namespace gt {

class DataWaitWatch {
 public:
  static constexpr int kSteps = 20, kIgnored = 2;  // the first steps wait for the loader to start
  static constexpr double kMost = 0.01;            // fraction of the time

  // Records a step of `seconds`, of which `wait` were spent waiting. Returns the warning once, the first time that
  // kSteps consecutive steps waited too long.
  std::optional<std::string> step(double wait, double seconds);

 private:
  int ignored_ = 0, steps_ = 0;
  double wait_ = 0, seconds_ = 0;
  bool warned_ = false;
};

}  // namespace gt
