#include "launch/commands/copy_progress.h"

#include <fmt/format.h>

#include <algorithm>

#include "launch/observe/sinks/progress.h"

namespace gt {

std::string copy_text(int64_t done, int64_t total, double seconds, int width) {
  const auto bytes = static_cast<double>(done), all = static_cast<double>(std::max<int64_t>(total, 1));
  const std::string size = fmt::format("{} of {}", format_bytes(bytes), format_bytes(all));
  std::vector<std::string> parts{format_bytes(bytes / std::max(seconds, 1e-9)) + "/s"};
  if (done > 0 && done < total) parts.push_back("eta " + format_duration(seconds * (all - bytes) / bytes));
  if (width > 0) return progress_bar(bytes / all, width, size, parts);
  return fmt::format("{}  {:.0f} %  {}", size, 100 * bytes / all, fmt::join(parts, "  "));
}

void CopyProgress::add(int64_t bytes) {
  done_ += bytes;
  const auto now = Clock::now();
  const auto since = [&](Clock::time_point t) { return std::chrono::duration<double>(now - t).count(); };
  if (since(shown_) < line_.seconds()) return;
  shown_ = now;
  line_.show(copy_text(done_, total_, since(began_), line_.width()));
}

}  // namespace gt
