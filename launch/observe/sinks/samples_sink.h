// The curves that DeepSpeed's monitors draw, under its names and over samples instead of steps, with ours beside them:
// as TensorBoard events or as a CSV file a curve. Written out after every step.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "launch/observe/metrics.h"

namespace gt {

// Where points go: a folder, made when it is not there. Throws kIo, and the sink is switched off.
class Curves {
 public:
  virtual ~Curves() = default;
  virtual const char* name() const = 0;
  virtual void point(const std::string& tag, double value, int64_t samples, double wall) = 0;
  virtual void flush() = 0;
  virtual std::vector<std::string> notices() = 0;
  virtual std::string unwritten() const = 0;
};

// x = samples taken when the step has ended, skipped steps included.
struct SampleAxis {
  int64_t step = 0, samples = 0;  // before the first step of this start
  int64_t global_batch = 1;
  int64_t at(int64_t s) const { return samples + (s - step) * global_batch; }
};

std::unique_ptr<Curves> tensorboard_curves(const std::string& folder, const SampleAxis& axis);
// Tag a/b c -> a_b_c.csv; the header "step,c" only where the file is empty, then lines "samples,value", ascending: a
// start of the run goes on after the samples that it had at its checkpoint, later lines of the file go, and a rollback
// drops what it takes back. A run that begins at its first step puts another's file aside as a_b_c.csv.old.
std::unique_ptr<Curves> csv_curves(const std::string& folder, const SampleAxis& axis);

class SamplesSink : public Sink {
 public:
  // times: Train/Samples/elapsed_time_ms_* too.
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
