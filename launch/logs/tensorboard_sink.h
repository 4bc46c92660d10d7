// Curves and texts of a run as TensorBoard events: which record becomes which tag.
#pragma once
#include <memory>
#include <string>

#include "launch/logs/metrics.h"
#include "launch/logs/tensorboard.h"

namespace gt {

class TensorBoardSink : public Sink {
 public:
  // log_every: steps between two points of a curve.
  explicit TensorBoardSink(int64_t log_every) : every_(log_every) {}
  const char* name() const override { return "tensorboard"; }
  void start(const StartInfo& info) override;
  void step(const StepRecord& r) override;
  void scalar(const ScalarRecord& r) override { file_->scalar(r.tag.data(), r.value, r.step, r.time); }
  void eval(const EvalRecord& r) override;
  void saved(const SavedRecord& r) override;
  void flush() override;

 private:
  int64_t every_, newest_ = -1;  // newest_: step of the last record
  std::unique_ptr<TensorBoardFile> file_;
};

}  // namespace gt
