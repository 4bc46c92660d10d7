// Options of the check for anomalous steps (launch/engine/step_guard.h).
#pragma once
#include <array>
#include <cstdint>

namespace gt {

enum class SpikeAction : uint8_t {
  kSkip,      // skip the update; roll back after bad_steps in a row
  kRollback,  // roll back at the first one
  kWarn,      // report it, apply the update
  kOff,       // no check
};
constexpr std::array<const char*, 4> names_of(SpikeAction) { return {"skip", "rollback", "warn", "off"}; }

struct GuardOptions {
  double spike_z = 6;
  SpikeAction action = SpikeAction::kWarn;
  int64_t bad_steps = 3;      // consecutive anomalous steps before a rollback
  int64_t max_rollbacks = 3;  // the next request ends the run
  bool clipped = true;        // not an option of its own: clipping bounds the update whatever the gradient norm
  template <class V>
  void fields(V& v) {
    v("spike_z", spike_z, ">0..1e9 deviations",
      "deviations above the median of the last 128 accepted steps at which a loss, or the log of a gradient norm, is a "
      "spike");
    v("spike_action", action, "",
      "action on a spike: skip its update, roll back to an older checkpoint, warn and apply the update, or off (no "
      "check); non-finite updates are always skipped");
    v("bad_steps", bad_steps, "1..1000000 steps",
      "consecutive skipped steps before a rollback to a checkpoint 100 steps older; if only clipped gradient norms "
      "rose, the update is applied");
    v("max_rollbacks", max_rollbacks, "0..1000",
      "rollbacks before the run ends with exit code 17; reset after 1000 normal steps");
  }
};

}  // namespace gt
