// RUN/metrics.csv: one row a step under a fixed header, appended in whole lines; unknown values are empty. Readers use
// the last row of a step, as in log.jsonl.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "launch/observe/metrics.h"
#include "launch/observe/sinks/log_file.h"

namespace gt {

std::string csv_header();
std::string csv_row(const StepRecord&);

class CsvSink : public Sink {
 public:
  const char* name() const override { return "metrics.csv"; }
  void start(const StartInfo&) override;
  void step(const StepRecord& r) override { file_->add(csv_row(r)); }
  void flush() override {
    if (file_) file_->flush();
  }
  std::vector<std::string> notices() override { return file_ ? file_->notices() : std::vector<std::string>(); }
  std::string unwritten() const override { return file_ ? file_->unwritten() : ""; }

 private:
  std::unique_ptr<LogFile> file_;
};

}  // namespace gt
