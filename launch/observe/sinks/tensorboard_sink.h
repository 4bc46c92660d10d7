// TensorBoard sink: curves over steps, texts, settings, histograms.
#pragma once
#include <functional>
#include <optional>
#include <utility>

#include "kernels/core/conditions.h"
#include "launch/observe/sinks/curves.h"

namespace gt {

class TensorBoardSink : public CurveSink {
 public:
  // log_every: steps between two points of a curve. `conditions`: returns the current conditions of rank 0's GPU; the
  // writer thread calls it at most once a second; may be empty.
  explicit TensorBoardSink(int64_t log_every, std::function<DeviceConditions()> conditions = {})
      : CurveSink(
            nullptr, {}, [](const StepMetric& m) -> const MetricName& { return m.tensorboard; }, "", log_every),
        sample_conditions_(std::move(conditions)) {}
  const char* name() const override { return "tensorboard"; }
  void start(const StartInfo& info) override;
  void step(const StepRecord& r) override;
  void memory(const MemoryRecord& r) override;
  void histogram(const HistogramRecord& r) override { file_->histogram(r.tag, *r.histogram, r.step, r.time); }
  void end(const EndInfo& info) override;
  void scalar(const ScalarRecord& r) override { file_->scalar(r.tag.data(), r.value, r.step, r.time); }
  void eval(const EvalRecord& r) override;
  void saved(const SavedRecord& r) override;

 private:
  std::function<DeviceConditions()> sample_conditions_;
  std::optional<MemoryBytes> memory_;  // of the largest rank: points of every step from then on
  double sampled_ = 0;                 // time of the last record with device conditions
  TensorBoardFile* file_ = nullptr;    // of the curves; its points may be of any step
};

}  // namespace gt
