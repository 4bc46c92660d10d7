#include "launch/observe/sinks/console.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "kernels/core/text.h"
#include "launch/observe/step_metrics.h"
#include "launch/options/json_text.h"

namespace gt {
namespace {

// NaN without its sign.
std::string fixed(const char* pattern, double x) {
  return fmt::format(fmt::runtime(pattern), std::isnan(x) ? kUnknown : x);
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Without a data-sheet peak for the device, utilization is relative to its measured peak; "" without that one too,
// where the start block names the command that measures it (mfu_line).
std::string utilization(const StepRecord& r) {
  if (!std::isnan(r.mfu)) return fmt::format("  mfu {:.1f}%", r.mfu * 100);
  return std::isnan(r.of_ceiling) ? "" : fmt::format("  {:.1f}% of measured peak", r.of_ceiling * 100);
}

constexpr double kLeastRedraw = 0.1;  // seconds

}  // namespace

std::string step_line(const StepRecord& r, double eta_seconds, const StepRecord* previous) {
  static const auto kRows = metrics_in([](const StepMetric& m) -> const MetricName& { return m.console; });
  std::string line = fmt::format("step {}/{}", r.step, r.total_steps);
  const auto rows = [&](int from, int to) {
    for (const StepMetric* m : kRows)
      if (const double x = m->of(r); m->console.at >= from && m->console.at < to && m->known(x))
        line += "  " + fixed(m->console.name, x);
  };
  rows(0, StepMetric::kAfterEta);
  line += fmt::format("  {} tok/s{}  {}", format_count(r.tokens_per_second), utilization(r),
                      format_duration(r.step_seconds));
  if (r.step < r.total_steps) line += "  eta " + format_duration(eta_seconds);
  rows(StepMetric::kAfterEta, 1 << 20);
  if (r.skipped > (previous ? previous->skipped : 0)) line += fmt::format("  skipped {}", r.skipped);
  if (previous && r.seq != previous->seq) line += fmt::format("  seq {}", r.seq);
  if (r.data_wait >= 0.01) line += fmt::format("  wait {:.1f}%", r.data_wait * 100);
  if (previous && r.epoch != previous->epoch) line += fmt::format("  epoch {}", r.epoch);
  return line;
}

std::string eval_line(const EvalRecord& r) {
  return fmt::format("eval step {}  loss {}  ppl {}  ({} tokens, {:.1f} s)", r.step, fixed("{:.4f}", r.loss),
                     fixed("{:.1f}", r.perplexity()), format_thousands(r.tokens), r.seconds);
}

std::string saved_line(const SavedRecord& r) {
  return fmt::format("saved step-{:09}  {}  stall {:.2f} s", r.step, format_bytes(static_cast<double>(r.bytes)),
                     r.stall_seconds);
}

bool use_progress_bar(OnOff log_progress) {
  const char* term = std::getenv("TERM");
  const bool dumb = !term || std::strcmp(term, "dumb") == 0;
  return log_progress == OnOff::kOn || (log_progress == OnOff::kAuto && terminal_width() > 0 && !dumb);
}

ConsoleSink::ConsoleSink(ConsoleOptions options) : options_(std::move(options)) {
  if (!options_.write)
    options_.write = [](std::string_view s) {
      std::fwrite(s.data(), 1, s.size(), stdout);
      std::fflush(stdout);
    };
}

void ConsoleSink::start(const StartInfo& info) {
  eta_ = Eta(info.total_steps, info.eval_every, info.save_every);
  if (!options_.quiet && !info.rows.empty()) print(block(info.rows) + '\n');
}

// Erases the bar by overwriting it with spaces. No escape codes, for NO_COLOR and simple terminals.
void ConsoleSink::erase() {
  if (bar_columns_ == 0) return;
  options_.write('\r' + std::string(bar_columns_, ' ') + '\r');
  bar_columns_ = 0;
}

void ConsoleSink::print(const std::string& text) {
  const bool redraw = bar_columns_ > 0;
  erase();
  options_.write(printable_lines(text));  // file names and checkpoint contents are untrusted text
  if (redraw) draw(last_);
}

void ConsoleSink::draw(const StepRecord& r) {
  const int columns = options_.width();
  const int width = std::max((columns > 0 ? columns : 80) - 1, 10);  // some terminals wrap after the last column
  const std::string line =
      progress_bar(r.total_steps > 0 ? static_cast<double>(r.step) / static_cast<double>(r.total_steps) : 0, width,
                   fmt::format("step {}/{}", r.step, r.total_steps),
                   {"loss " + fixed("{:.4f}", r.loss), "eta " + format_duration(eta_.remaining(r.step)),
                    format_count(r.tokens_per_second) + " tok/s"});
  const size_t pad = bar_columns_ > line.size() ? bar_columns_ - line.size() : 0;
  options_.write('\r' + line + std::string(pad, ' ') + std::string(pad, '\b'));
  bar_columns_ = line.size();
  drawn_ = steady_seconds();
}

void ConsoleSink::step(const StepRecord& r) {
  eta_.step(r.step_seconds);
  last_ = r;
  const bool final_step = r.step == r.total_steps;
  if (options_.bar && !options_.quiet) {
    if (final_step || steady_seconds() - drawn_ >= kLeastRedraw) draw(r);
    return;
  }
  if (options_.quiet ? printed_any_ : (r.step % options_.every != 0 && !final_step)) return;
  print(step_line(r, eta_.remaining(r.step), printed_any_ ? &last_printed_ : nullptr) + '\n');
  last_printed_ = r;
  printed_any_ = true;
}

void ConsoleSink::eval(const EvalRecord& r) {
  eta_.eval(r.seconds);
  print(eval_line(r) + '\n');
}

void ConsoleSink::saved(const SavedRecord& r) {
  eta_.saved(r.stall_seconds);
  if (!options_.quiet) print(saved_line(r) + '\n');
}

void ConsoleSink::event(const EventRecord& r) {
  print(fmt::format("{}{}\n", r.warning ? "warning: " : "", r.text.data()));
}

void ConsoleSink::end(const EndInfo& info) {
  if (bar_columns_ > 0) {
    draw(last_);
    options_.write("\n");
    bar_columns_ = 0;
  }
  Rows rows{{"end", fmt::format("{} (exit code {})", info.reason, info.exit_code)}};
  rows.insert(rows.end(), info.rows.begin(), info.rows.end());
  std::string next;
  for (const std::string& command : info.next) next += (next.empty() ? "" : "\n") + command;
  if (!next.empty()) rows.emplace_back("next", next);
  print('\n' + block(rows));
}

}  // namespace gt
