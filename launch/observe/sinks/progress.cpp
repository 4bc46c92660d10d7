#include "launch/observe/sinks/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace gt {

void Eta::step(double seconds) {
  if (std::isfinite(seconds)) recent_[count_++ % recent_.size()] = seconds;
}

double Eta::remaining(int64_t step) const {
  const size_t n = std::min(count_, recent_.size());
  if (n == 0) return std::nan("");
  std::array<double, 50> sorted = recent_;
  std::nth_element(sorted.begin(), sorted.begin() + n / 2, sorted.begin() + n);
  const int64_t left = std::max<int64_t>(total_ - step, 0);
  const auto times = [&](int64_t every) {
    return every > 0 ? static_cast<double>(total_ / every - step / every) : 0.0;
  };
  return static_cast<double>(left) * sorted[n / 2] + times(eval_every_) * eval_seconds_ +
         times(save_every_) * save_seconds_;
}

std::string progress_bar(double share, int width, const std::string& before, const std::vector<std::string>& after) {
  constexpr int kLeastBar = 8, kMostBar = 40;
  share = std::clamp(std::isnan(share) ? 0 : share, 0.0, 1.0);
  const std::string percent = fmt::format(" {:3.0f}% ", std::floor(share * 100));
  std::string tail;
  const int fixed = static_cast<int>(before.size() + percent.size()) + 2;
  for (const std::string& part : after) {
    if (fixed + kLeastBar + static_cast<int>(tail.size() + part.size()) + 2 > width) break;
    tail += "  " + part;
  }
  const int bar = std::min(width - fixed - static_cast<int>(tail.size()), kMostBar);
  std::string line = before + percent;
  if (bar >= 3) {
    const int full = static_cast<int>(share * bar);
    line += '[' + std::string(static_cast<size_t>(full), '=');
    if (full < bar) line += '>' + std::string(static_cast<size_t>(bar - full - 1), ' ');
    line += ']';
  }
  line += tail;
  return line.substr(0, static_cast<size_t>(std::max(width, 0)));
}

}  // namespace gt
