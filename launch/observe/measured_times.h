// Seconds of ops and of communication, measured on one machine by `gpttrain plan --calibrate` and kept in the user's
// cache folder. Plans and runs of that machine predict their steps from them (step_prediction.h).
#pragma once
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/tensor.h"
#include "launch/engine/measure/step_ops.h"
#include "parallel/comm/process_group.h"

namespace gt {

// Conditions of a measurement. `together`: ranks that compute at the same time and share caches and memory bandwidth.
struct MeasuredOn {
  std::string device;
  DType dtype = DType::kF32;
  int threads = 1, together = 1;
  bool operator==(const MeasuredOn&) const = default;
};

// Measured over predicted time of the classes of a run's steps (step_prediction.h).
struct RunRatios {
  static constexpr size_t kClasses = 5;
  std::string what;  // model and ranks: correction_key()
  std::array<double, kClasses> of{1, 1, 1, 1, 1};
};

struct OpSeconds {
  double call = 0;
  double pack = 0;  // more for the first call with a weight in a step (OpCall::packs)
};

// Name of a group's backend in MeasuredTimes: that of its messages between machines differs from that inside one.
std::string transport_between(std::string_view backend, int machines);

class MeasuredTimes {
 public:
  static constexpr size_t kMostRuns = 20, kMostKept = 400;  // of one model, of all
  static constexpr double kMostCorrection = 1.5;

  explicit MeasuredTimes(MeasuredOn on) : on_(std::move(on)) {}
  const MeasuredOn& on() const { return on_; }
  bool empty() const { return ops_.empty(); }
  size_t ops() const;  // shapes measured

  void set(const OpCall&, OpSeconds);
  bool measured(const OpCall&) const;
  // Seconds of all calls of a step: measured or, of another shape, those of the measured shape of the same op with the
  // nearest cost, scaled by the cost. NaN if no call of the op was measured.
  double seconds(const OpCall&) const;

  // `transport`: transport_between().
  void set(std::string_view transport, CommOp, int64_t ranks, int64_t bytes, double seconds);
  // Seconds of a call over tensors of `bytes` in the measured group of the nearest size, interpolated between tensor
  // sizes; 0 for one rank, NaN if the call was not measured.
  double seconds(std::string_view transport, CommOp, int64_t ranks, double bytes) const;

  // Keeps the newest runs, kMostRuns of each model and number of ranks. Corrections are the medians of such runs by
  // class, within a factor of kMostCorrection; others are off by other factors, so theirs are not used.
  void add_run(const RunRatios&);
  RunRatios corrections(const std::string& what) const;
  size_t runs(const std::string& what) const;
  // Seconds of a step of a layout that was trained here; NaN if it was not. `layout`: layout_key() of
  // launch/tools/plan.
  void set_step(const std::string& layout, double seconds) { steps_[layout] = seconds; }
  double step(const std::string& layout) const;
  // After a calibration: the runs corrected the times before it.
  void drop_runs() { runs_.clear(); }

  std::string file() const;  // in the cache folder; "": there is no such folder
  void save() const;         // throws kIo
  // Nothing if the file is missing, damaged, of other conditions or another version, or not this user's own
  // (kernels/core/cache_files.h): the times are optional.
  static std::optional<MeasuredTimes> load(const MeasuredOn&);

 private:
  struct OpTime {
    double flops = 0, bytes = 0;
    OpSeconds seconds;
  };
  using CommKey = std::pair<std::string, std::pair<int, int64_t>>;  // transport, op, ranks
  MeasuredOn on_;
  std::map<std::string, std::map<std::string, OpTime>> ops_;  // by op and direction, by shape
  std::map<CommKey, std::map<int64_t, double>> comm_;         // by bytes
  std::vector<RunRatios> runs_;                               // oldest first
  std::map<std::string, double> steps_;                       // by layout
};

}  // namespace gt
