// Notices that training waits for its data: more than 1 % of the time over 20 steps. Counts seconds that it is told.
#pragma once
#include <optional>
#include <string>

namespace gt {

class DataWaitWatch {
 public:
  static constexpr int kSteps = 20, kIgnored = 2;  // the first steps wait for a loader that has only just begun
  static constexpr double kMost = 0.01;            // of the time

  // One step that took `seconds`, of which it waited `wait`. The warning, once: the first time that kSteps steps in a
  // row together waited too long.
  std::optional<std::string> step(double wait, double seconds);

 private:
  int ignored_ = 0, steps_ = 0;
  double wait_ = 0, seconds_ = 0;
  bool said_ = false;
};

}  // namespace gt
