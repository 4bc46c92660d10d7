// Console output of rank 0: start block, step lines or a progress bar, evaluations, saves, warnings, end block. Depends
// on strings and records only, not on config or engine.
#pragma once
#include <functional>
#include <string>

#include "launch/observe/metrics.h"
#include "launch/observe/sinks/progress.h"
#include "launch/options/on_off.h"

namespace gt {

// Returns "step 120/2000  loss 4.2137  gnorm 0.812  lr 2.40e-04  12.3k tok/s  mfu 31.2%  832 ms  eta 26m04s", plus
// scale, skipped, seq, wait and epoch where they apply; without mfu, or "41.2% of measured peak" in its place, where no
// data-sheet peak is known. `previous`: the step printed before, to detect changes; nullptr
// for the first.
std::string step_line(const StepRecord& r, double eta_seconds, const StepRecord* previous = nullptr);
std::string eval_line(const EvalRecord& r);    // "eval step 200  loss 4.1021  ppl 60.5  (204,800 tokens, 3.2 s)"
std::string saved_line(const SavedRecord& r);  // "saved step-000000200  1.9 GB  stall 0.08 s"

// Returns whether to draw a bar; kAuto: if standard output is a terminal and TERM is not dumb.
bool use_progress_bar(OnOff log_progress);

struct ConsoleOptions {
  int64_t every = 1;  // steps between two lines
  bool bar = false;
  bool quiet = false;                           // warnings, evaluations, the first step and the end only
  std::function<void(std::string_view)> write;  // default: standard output, flushed
  std::function<int()> width = terminal_width;
};

class ConsoleSink : public Sink {
 public:
  explicit ConsoleSink(ConsoleOptions options);
  const char* name() const override { return "console"; }
  void start(const StartInfo& info) override;
  void step(const StepRecord& r) override;
  void eval(const EvalRecord& r) override;
  void saved(const SavedRecord& r) override;
  void event(const EventRecord& r) override;
  void end(const EndInfo& info) override;

 private:
  void print(const std::string& text);  // above the bar
  void draw(const StepRecord& r);
  void erase();
  ConsoleOptions options_;
  Eta eta_;
  StepRecord last_printed_, last_;
  bool printed_any_ = false;
  size_t bar_columns_ = 0;  // currently on the terminal
  double drawn_ = 0;        // time of the last redraw, in seconds of a steady clock
};

}  // namespace gt
