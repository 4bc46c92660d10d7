// Sink that writes RUN/report.html at the end of a run, and every so many steps while it goes on. Comes after
// JsonlSink, whose file it reads. What fails is a notice: a run needs no report to be good.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launch/observe/metrics.h"
#include "launch/tools/report/run_log.h"

namespace gt {

class ReportSink : public Sink {
 public:
  explicit ReportSink(int64_t every) : every_(every) {}  // 0: only at the end
  const char* name() const override { return "report.html"; }
  void start(const StartInfo& info) override { dir_ = info.run_dir; }
  void step(const StepRecord& r) override { due_ = due_ || (every_ > 0 && r.step % every_ == 0); }
  void end(const EndInfo&) override { due_ = true; }
  void flush() override;
  std::vector<std::string> notices() override { return std::exchange(notices_, {}); }

 private:
  int64_t every_;
  bool due_ = false;
  std::string dir_;
  std::optional<RunLog> log_;  // what was read so far
  std::vector<std::string> notices_;
};

}  // namespace gt
