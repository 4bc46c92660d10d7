#include "launch/observe/work_progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "launch/observe/sinks/progress.h"

namespace gt {

std::string progress_text(int64_t done, int64_t total, double seconds, int width, const std::string& unit) {
  const auto text = [&](double n) { return unit.empty() ? format_bytes(n) : format_thousands(std::llround(n)); };
  const auto part = static_cast<double>(done), all = static_cast<double>(std::max<int64_t>(total, 1));
  const std::string size = fmt::format("{} of {}{}{}", text(part), text(all), unit.empty() ? "" : " ", unit);
  std::vector<std::string> parts{text(part / std::max(seconds, 1e-9)) + "/s"};
  if (done > 0 && done < total) parts.push_back("eta " + format_duration(seconds * (all - part) / part));
  if (width > 0) return progress_bar(part / all, width, size, parts);
  return fmt::format("{}  {:.0f} %  {}", size, 100 * part / all, fmt::join(parts, "  "));
}

void WorkProgress::add(int64_t amount) {
  done_ += amount;
  const auto now = Clock::now();
  const auto since = [&](Clock::time_point t) { return std::chrono::duration<double>(now - t).count(); };
  if (since(shown_) < line_.seconds()) return;
  shown_ = now;
  line_.show(progress_text(done_, total_, since(began_), line_.width(), unit_));
}

}  // namespace gt
