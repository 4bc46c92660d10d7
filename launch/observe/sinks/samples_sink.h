// Curves of DeepSpeed's monitors, under its names and over samples instead of steps, plus our own, as TensorBoard
// events or one CSV file per curve. Flushed after every step.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "launch/observe/metrics.h"

namespace gt {

// Destination of points: a folder, created on demand. On kIo the sink is disabled.
class Curves {
 public:
  virtual ~Curves() = default;
  virtual const char* name() const = 0;
  virtual void point(const std::string& tag, double value, int64_t samples, double wall) = 0;
  virtual void flush() = 0;
  virtual std::vector<std::string> notices() = 0;
  virtual std::string unwritten() const = 0;
};

// x = samples consumed at the end of the step, including skipped steps.
struct SampleAxis {
  int64_t step = 0, samples = 0;  // at the start of this process
  int64_t global_batch = 1;
  int64_t at(int64_t s) const { return samples + (s - step) * global_batch; }
};

std::unique_ptr<Curves> tensorboard_curves(const std::string& folder, const SampleAxis& axis);
// Tag a/b c → a_b_c.csv, with the header "step,c" and lines "samples,value" in ascending order. A resumed run drops
// lines beyond its checkpoint's samples, and a rollback drops the lines that it reverts. A run that begins at step 1
// renames an existing file to a_b_c.csv.old.
std::unique_ptr<Curves> csv_curves(const std::string& folder, const SampleAxis& axis);

class SamplesSink : public Sink {
 public:
  // times: also Train/Samples/elapsed_time_ms_*.
  SamplesSink(std::unique_ptr<Curves> curves, const SampleAxis& axis, bool times)
      : curves_(std::move(curves)), axis_(axis), times_(times) {}
  const char* name() const override { return curves_->name(); }
  void step(const StepRecord& r) override;
  void eval(const EvalRecord& r) override;
  void scalar(const ScalarRecord& r) override;
  void flush() override { curves_->flush(); }
  std::vector<std::string> notices() override { return curves_->notices(); }
  std::string unwritten() const override { return curves_->unwritten(); }

 private:
  std::unique_ptr<Curves> curves_;
  const SampleAxis axis_;
  const bool times_;
};

}  // namespace gt
