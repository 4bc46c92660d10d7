// Estimated remaining time, and the progress bar as text. console.h draws it.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "launch/options/console_text.h"

namespace gt {

// Remaining time: median of the last 50 step times, plus the latest cost of the remaining evaluations and saves.
class Eta {
 public:
  Eta(int64_t total_steps = 0, int64_t eval_every = 0, int64_t save_every = 0)
      : total_(total_steps), eval_every_(eval_every), save_every_(save_every) {}
  void step(double seconds);
  void eval(double seconds) { eval_seconds_ = seconds; }
  void saved(double stall_seconds) { save_seconds_ = stall_seconds; }
  double remaining(int64_t step) const;  // NaN before the first step

 private:
  int64_t total_, eval_every_, save_every_;
  std::array<double, 50> recent_{};
  size_t count_ = 0;
  double eval_seconds_ = 0, save_seconds_ = 0;
};

// Returns one line of at most `width` columns in plain ASCII: "[=====>      ]" between `before` and `after`. On narrow
// terminals, parts of `after` are dropped from the end.
std::string progress_bar(double share, int width, const std::string& before, const std::vector<std::string>& after);

}  // namespace gt
