// TensorBoard sink: maps records to tags.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "kernels/core/conditions.h"
#include "launch/observe/metrics.h"
#include "launch/observe/sinks/tensorboard.h"

namespace gt {

class TensorBoardSink : public Sink {
 public:
  // log_every: steps between two points of a curve. `conditions`: returns the current conditions of rank 0's GPU; the
  // writer thread calls it at most once a second; may be empty.
  explicit TensorBoardSink(int64_t log_every, std::function<DeviceConditions()> conditions = {})
      : every_(log_every), sample_conditions_(std::move(conditions)) {}
  const char* name() const override { return "tensorboard"; }
  void start(const StartInfo& info) override;
  void step(const StepRecord& r) override;
  void memory(const MemoryRecord& r) override;
  void histogram(const HistogramRecord& r) override { file_->histogram(r.tag, *r.histogram, r.step, r.time); }
  void end(const EndInfo& info) override;
  void scalar(const ScalarRecord& r) override { file_->scalar(r.tag.data(), r.value, r.step, r.time); }
  void eval(const EvalRecord& r) override;
  void saved(const SavedRecord& r) override;
  void flush() override;
  std::vector<std::string> notices() override { return file_ ? file_->notices() : std::vector<std::string>(); }
  std::string unwritten() const override { return file_ ? file_->unwritten() : ""; }

 private:
  int64_t every_, newest_ = -1;  // newest_: step of the last record
  std::function<DeviceConditions()> sample_conditions_;
  std::optional<MemoryBytes> memory_;  // of the largest rank: points of every step from then on
  double sampled_ = 0;                 // time of the last record with device conditions
  std::unique_ptr<TensorBoardFile> file_;
};

}  // namespace gt
