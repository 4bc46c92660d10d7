#include "launch/observe/sinks/samples_sink.h"

#include <string_view>

namespace gt {

void SamplesSink::step(const StepRecord& r) {
  begin(r);
  draw(r);
  if (times_) {
    const auto time = [&](const char* what, double seconds) {
      point(cat("Train/Samples/elapsed_time_ms_", what), 1e3 * seconds, r.step, r.time);
    };
    const Timers& t = r.longest;
    const double inner = t[kBackwardTime] + t[kInputGradTime] + t[kWeightGradTime];
    if (t[kMicrobatchTime] == 0) {  // otherwise the end of the forward is unknown
      time("forward", t[kForwardTime]);
      time("backward", inner + t[kReduceTime]);
      time("backward_inner", inner);
    }
    time("backward_allreduce", t[kReduceTime]);
    time("step", t[kNormsTime] + t[kOptimizerTime] + t[kGatherTime]);
  }
  flush();
}

// Writes trust ratios only: DeepSpeed's monitors have no other scalars.
void SamplesSink::scalar(const ScalarRecord& r) {
  constexpr std::string_view kOurs = "train/lamb_coeff/";
  const std::string_view tag = r.tag.data();
  if (tag.substr(0, kOurs.size()) == kOurs)
    point("Train/Lamb/coeff_" + std::string(tag.substr(kOurs.size())), r.value, r.step, r.time);
}

}  // namespace gt
