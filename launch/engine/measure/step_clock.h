// Measures the steps of one rank: the ends of its phases, and its times in pipeline and update.
#pragma once
#include <array>

#include "kernels/core/stream_clock.h"
#include "launch/engine/measure/step_times.h"
#include "parallel/mesh.h"
#include "parallel/pipeline/executor.h"

namespace gt {

class StepClock {
 public:
  StepClock(const Mesh& mesh, const DeviceApi& device, Stream stream)
      : mesh_(mesh), device_(device), stream_(stream), clocks_{{{device, stream}}, {{device, stream}}} {}

  void begin_step();
  void end_phase(Phase);  // kGather ends the step
  void set_data_wait(double seconds) { own_[kDataTime] = seconds; }

  // Returns this rank's times to exchange in this step; StageTime defines which steps they belong to.
  const Timers& own_times(const PipelineExecutor&);
  // Call once the host has observed that work up to Phase::kNorms is complete. On an asynchronous device this resolves
  // the times of marks.
  void settle(PipelineExecutor&);
  // Measures the last step whose update is complete. Returns its seconds on the stream; 0: none yet.
  double measure_update(const PipelineExecutor&);
  // Phases of the last step; waits for its update on an asynchronous device.
  PhaseEnds phases() const;

 private:
  // Marks of the phases of one step. Double-buffered: on an asynchronous device an update ends during the next step.
  struct Marks {
    StreamClock clock;
    std::array<size_t, kNumPhases + 1> at{};
    bool complete = false;
    double length(Phase p) const {
      const auto k = static_cast<size_t>(p);
      return clock.at(at[k + 1]) - clock.at(at[k]);
    }
  };
  Marks& marks_of(size_t step) { return clocks_[step % 2]; }
  const Marks& marks() const { return clocks_[step_ % 2]; }
  void measure_pipeline(const PipelineExecutor&);
  const Mesh& mesh_;
  const DeviceApi& device_;
  const Stream stream_;
  Marks clocks_[2];
  size_t step_ = 0;
  Timers own_{};
};

}  // namespace gt
