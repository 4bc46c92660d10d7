// Curves as TensorBoard events or as one CSV file per curve, over steps or over samples.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "launch/observe/sinks/tensorboard.h"
#include "launch/observe/step_metrics.h"

namespace gt {

// The x-axis: a linear function of the step. {}: steps.
struct CurveAxis {
  int64_t step = 0, x = 0;  // at the start of this process
  int64_t per_step = 1;
  int64_t at(int64_t s) const { return x + (s - step) * per_step; }
};

// Destination of points: a folder, created at the first point. On kIo the sink is disabled.
class Curves {
 public:
  virtual ~Curves() = default;
  virtual void begin(int64_t, double) {}  // a step's points follow, at this x and time
  virtual void point(std::string_view tag, double value, int64_t x, double wall) = 0;
  virtual void flush() = 0;
  virtual std::vector<std::string> notices() = 0;
  virtual std::string unwritten() const = 0;
};

class TensorBoardCurves : public Curves {
 public:
  // first: x from which readers drop points of earlier starts.
  TensorBoardCurves(std::string folder, int64_t first) : folder_(std::move(folder)), first_(first) {}
  void begin(int64_t x, double wall) override;
  void point(std::string_view tag, double value, int64_t x, double wall) override;
  TensorBoardFile& file(double wall);  // created by the first call, in a folder that exists, or at the first point
  void flush() override {
    if (file_) file_->flush();
  }
  std::vector<std::string> notices() override { return file_ ? file_->notices() : std::vector<std::string>(); }
  std::string unwritten() const override { return file_ ? file_->unwritten() : ""; }

 private:
  void take_back(int64_t x, double wall);  // a rollback
  const std::string folder_;
  const int64_t first_;
  int64_t newest_ = -1, step_ = -1;  // x of the last point; of the last step
  std::unique_ptr<TensorBoardFile> file_;
};

// Tag a/b c → a_b_c.csv, with the header "step,c" and lines "x,value" in ascending order. A resumed run drops lines
// from `first` on, and a rollback drops the lines that it reverts. `fresh`: an existing file is another run's, renamed
// to a_b_c.csv.old.
std::unique_ptr<Curves> csv_curves(const std::string& folder, int64_t first, bool fresh);

// Writes the figures of steps as curves, under their names in one output.
class CurveSink : public Sink {
 public:
  // every: steps between two points; the run's last step has one. `group`: precedes the names.
  CurveSink(std::unique_ptr<Curves> curves, const CurveAxis& axis, MetricOutput name, std::string group, int64_t every)
      : curves_(std::move(curves)),
        axis_(axis),
        every_(every),
        name_(name),
        group_(std::move(group)),
        rows_(metrics_in(name)) {}
  void flush() override {
    if (curves_) curves_->flush();
  }
  std::vector<std::string> notices() override { return curves_ ? curves_->notices() : std::vector<std::string>(); }
  std::string unwritten() const override { return curves_ ? curves_->unwritten() : ""; }

 protected:
  bool begin(const StepRecord& r);  // returns whether the step has points
  // Draws the rows from position `from` of the output to below `to`.
  void draw(const StepRecord& r, int from = 0, int to = 1 << 20);
  void point(const std::string& tag, double value, int64_t step, double wall) {
    curves_->point(tag, value, axis_.at(step), wall);
  }

  std::unique_ptr<Curves> curves_;
  const CurveAxis axis_;

 private:
  const int64_t every_;
  const MetricOutput name_;
  const std::string group_;
  const std::vector<const StepMetric*> rows_;
};

}  // namespace gt
