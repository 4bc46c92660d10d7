#include "launch/logs/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace gt {

std::string format_duration(double s) {
  if (std::isnan(s)) return "n/a";
  if (s < 0.9995) return fmt::format("{:.0f} ms", s * 1e3);
  if (s < 59.95) return fmt::format("{:.1f} s", s);
  const auto n = static_cast<int64_t>(std::llround(s));
  if (n < 3600) return fmt::format("{}m{:02}s", n / 60, n % 60);
  if (n < 86400) return fmt::format("{}h{:02}m", n / 3600, n % 3600 / 60);
  return fmt::format("{}d{:02}h", n / 86400, n % 86400 / 3600);
}

namespace {
// Three digits that count, of a number below 1000 after scaling.
std::string three_digits(double x) {
  const double a = std::fabs(x);
  return a < 9.995 ? fmt::format("{:.2f}", x) : a < 99.95 ? fmt::format("{:.1f}", x) : fmt::format("{:.0f}", x);
}
}  // namespace

std::string format_count(double x) {
  if (std::isnan(x)) return "n/a";
  static constexpr const char* kUnits[] = {"", "k", "M", "G", "T"};
  int unit = 0;
  for (; std::fabs(x) >= 999.5 && unit < 4; ++unit) x /= 1000;
  return (unit == 0 && x == std::floor(x) ? fmt::format("{:.0f}", x) : three_digits(x)) + kUnits[unit];
}

std::string format_bytes(double bytes) {
  if (std::isnan(bytes) || bytes < 0) return "n/a";
  static constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  int unit = 0;
  for (; bytes >= 999.5 && unit < 5; ++unit) bytes /= 1000;
  if (unit == 0) return fmt::format("{:.0f} B", bytes);
  return fmt::format("{:.{}f} {}", bytes, bytes < 99.95 ? 1 : 0, kUnits[unit]);
}

std::string format_thousands(int64_t x) {
  std::string s = std::to_string(x);
  for (auto i = static_cast<int64_t>(s.size()) - 3; i > (x < 0 ? 1 : 0); i -= 3) s.insert(static_cast<size_t>(i), ",");
  return s;
}

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
  const int room = std::min(width - fixed - static_cast<int>(tail.size()), kMostBar);
  std::string line = before + percent;
  if (room >= 3) {
    const int full = static_cast<int>(share * room);
    line += '[' + std::string(static_cast<size_t>(full), '=');
    if (full < room) line += '>' + std::string(static_cast<size_t>(room - full - 1), ' ');
    line += ']';
  }
  line += tail;
  return line.substr(0, static_cast<size_t>(std::max(width, 0)));
}

}  // namespace gt
