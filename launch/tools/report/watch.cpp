// gpttrain watch: follows a run by its log. A panel on terminals, a line per look elsewhere.
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "kernels/core/host.h"
#include "kernels/core/text.h"
#include "launch/options/output.h"
#include "launch/ranks/run_file.h"
#include "launch/ranks/signals.h"
#include "launch/tools/report/run_summary.h"
#include "launch/tools/report/subcommands.h"
#include "launch/tools/report/watch_view.h"

namespace gt {
namespace {

// Whether standard output can redraw lines in place.
bool redraws() {
  const char *term = std::getenv("TERM"), *plain = std::getenv("NO_COLOR");
  return terminal_width() > 0 && term != nullptr && std::string_view(term) != "dumb" && (plain == nullptr || !*plain);
}

int terminal_height() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 ? size.ws_row : 24;
}

// Draws over what was drawn before.
class Panel {
 public:
  void show(const RunLog& log) {
    const std::vector<std::string> lines = watch_panel(log, terminal_width() - 1, terminal_height() - 1);
    std::string out = drawn_ > 0 ? fmt::format("\x1b[{}A\r\x1b[J", drawn_) : "";
    for (const std::string& line : lines) out += line + '\n';
    drawn_ = lines.size();
    write_out(out);
    flush_out();
  }

 private:
  size_t drawn_ = 0;
};

// Sleeps, but ends soon after a stop signal.
void wait_seconds(double seconds) {
  for (const double end = now() + seconds; now() < end && !stop_requested();)
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(0.05, seconds)));
}

}  // namespace

Exit run_watch(const Command& command) {
  const auto& args = command.get<WatchArgs>();
  install_stop_signals();
  RunLog log(args.run);
  const bool panel = redraws();
  Panel drawn;
  // A run that is killed leaves no end record: its lock is free and its log is silent.
  constexpr double kSilence = 60, kSilentSteps = 20;
  double newest = now();
  for (bool first = true;; first = false) {
    const bool news = log.read();
    if (news) newest = now();
    if (panel) {
      drawn.show(log);
    } else if (first || news) {
      write_out(watch_line(log) + "\n");
      flush_out();
    }
    if (log.end() != nullptr) {
      if (!panel) write_out(fmt::format("end  {}\n", printable(summarize(log).status)));
      break;
    }
    if (args.once) break;
    const double step = summarize(log).step_seconds;
    if (now() - newest > std::max(kSilence, std::isnan(step) ? 0 : kSilentSteps * step) &&
        RunLock::state_of(args.run) != RunLock::State::kHeld) {
      write_out("the run is over without an end record: it was killed, or its machine is gone\n");
      break;
    }
    wait_seconds(args.interval);
    if (stop_requested()) return static_cast<Exit>(128 + stop_signal());
  }
  flush_out();
  return Exit::kOk;
}

}  // namespace gt
