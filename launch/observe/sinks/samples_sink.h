// Curves of DeepSpeed's monitors, under its names and over samples instead of steps, plus our own. Flushed after every
// step. x = samples consumed at the end of the step, including skipped steps.
#pragma once
#include <memory>
#include <string>

#include "launch/observe/sinks/curves.h"

namespace gt {

class SamplesSink : public CurveSink {
 public:
  // option: which turns the curves on. times: also Train/Samples/elapsed_time_ms_*.
  SamplesSink(const char* option, std::unique_ptr<Curves> curves, const CurveAxis& axis, bool times)
      : CurveSink(
            std::move(curves), axis, [](const StepMetric& m) -> const MetricName& { return m.samples; },
            "Train/Samples/", 1),
        option_(option),
        times_(times) {}
  const char* name() const override { return option_; }
  void step(const StepRecord& r) override;
  void eval(const EvalRecord& r) override { point("Train/Samples/eval_loss", r.loss, r.step, r.time); }
  void scalar(const ScalarRecord& r) override;

 private:
  const char* const option_;
  const bool times_;
};

}  // namespace gt
