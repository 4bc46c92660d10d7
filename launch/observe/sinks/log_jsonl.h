// Logs of lines in the run's folder, appended in whole lines with O_APPEND; readers use the last record of a step.
// log.jsonl: one JSON object per line; unknown values are null, non-finite ones the strings "nan", "inf", "-inf".
// metrics.csv: one row a step under a fixed header; unknown values are empty.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "launch/observe/metrics.h"
#include "launch/observe/sinks/log_file.h"

namespace gt {

// Return one line each, without the newline.
std::string json_line(const StartInfo& info, double time);
std::string json_line(const StepRecord& r);
std::string json_line(const EvalRecord& r);
std::string json_line(const SavedRecord& r);
std::string json_line(const EventRecord& r);
std::string json_line(const ScalarRecord& r);
std::string json_line(const MemoryRecord& r);
std::string json_line(const StagesRecord& r);
std::string json_line(const EndInfo& info, double time);

std::string csv_header();
std::string csv_row(const StepRecord& r);

class LinesSink : public Sink {
 public:
  void flush() override {
    if (file_) file_->flush();
  }
  std::vector<std::string> notices() override { return file_ ? file_->notices() : std::vector<std::string>(); }
  std::string unwritten() const override { return file_ ? file_->unwritten() : ""; }

 protected:
  void open(const StartInfo& info, const std::string& head) {
    file_ = std::make_unique<LogFile>(info.run_dir + "/" + name(), head, LogFile::Form::kLines);
  }
  std::unique_ptr<LogFile> file_;
};

class JsonlSink : public LinesSink {
 public:
  const char* name() const override { return "log.jsonl"; }
  void start(const StartInfo& info) override;
  void step(const StepRecord& r) override { add(json_line(r)); }
  void eval(const EvalRecord& r) override { add(json_line(r)); }
  void saved(const SavedRecord& r) override { add(json_line(r)); }
  void event(const EventRecord& r) override { add(json_line(r)); }
  void scalar(const ScalarRecord& r) override { add(json_line(r)); }
  void memory(const MemoryRecord& r) override { add(json_line(r)); }
  void stages(const StagesRecord& r) override { add(json_line(r)); }
  void end(const EndInfo& info) override { add(json_line(info, wall_seconds())); }

 private:
  void add(const std::string& line) { file_->add(line + '\n'); }
};

class CsvSink : public LinesSink {
 public:
  const char* name() const override { return "metrics.csv"; }
  void start(const StartInfo& info) override { open(info, csv_header()); }
  void step(const StepRecord& r) override { file_->add(csv_row(r)); }
};

}  // namespace gt
