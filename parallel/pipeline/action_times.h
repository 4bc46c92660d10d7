// Times of a run's actions on its stream (StreamClock): marks while they are queued, times once the run is known to be
// complete.
#pragma once
#include <span>
#include <vector>

#include "parallel/pipeline/executor.h"

namespace gt {

class ActionTimes {
 public:
  ActionTimes(const DeviceApi& api, Stream s) : clock_(api, s) {}
  // Reserves entries of one run, for compute actions and for the others.
  void reserve(size_t computed, size_t moved);

  void begin_run();
  bool asynchronous() const { return clock_.asynchronous(); }
  size_t mark() { return clock_.mark(); }
  // Record what began at mark `begin` and ends now. computed: actions queued as one unit; `entry` without its actions.
  // moved: a message or a reduction; `waited`: the stream waited for it.
  void computed(std::span<const Action>, size_t begin, ActionTime entry);
  void moved(const Action&, size_t begin, int64_t bytes, bool waited = false);
  void settle();
  void settle(const StreamClock& to) { clock_.anchor(to), settle(); }

  const Program& order() const { return order_; }  // of compute actions
  std::span<const ActionTime> computed() const { return computed_; }
  std::span<const ActionTime> moved() const { return moved_; }
  double started() const { return started_; }
  double busy_seconds() const { return busy_; }
  double wait_seconds() const { return wait_; }

 private:
  struct Marks {
    size_t begin, end;
    bool waited;
  };
  double set_times(ActionTime&, const Marks&) const;

  StreamClock clock_;
  std::vector<ActionTime> computed_, moved_;
  std::vector<Marks> computed_at_, moved_at_;
  Program order_;
  double started_ = 0, busy_ = 0, wait_ = 0;
};

}  // namespace gt
