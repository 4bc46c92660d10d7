#include "launch/options/console_text.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "launch/options/json_text.h"

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
// Formats x with three significant digits; requires |x| < 1000.
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

std::string block(const Rows& rows) {
  size_t widest = 0;
  for (const auto& [label, value] : rows) widest = std::max(widest, label.size());
  std::string out;
  for (const auto& [label, value] : rows) {
    std::string head = label;
    for (size_t i = 0; i <= value.size(); head.clear()) {
      const size_t end = std::min(value.find('\n', i), value.size());
      std::string line = fmt::format("{:<{}}  {}", head, widest, value.substr(i, end - i));
      while (!line.empty() && line.back() == ' ') line.pop_back();
      out += line + '\n';
      i = end + 1;
    }
  }
  return out;
}

int terminal_width() {
  // Ranks started by gpttrain write into mpirun's pseudo-terminal; the launcher passes the width of the real one
  // (launch/ranks/start/spawn.h).
  int64_t columns;
  if (const char* value = std::getenv("GPTTRAIN_COLUMNS"); value && parse_int(value, columns))
    return static_cast<int>(columns);
  winsize size{};
  if (isatty(STDOUT_FILENO) != 1) return 0;
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace gt
