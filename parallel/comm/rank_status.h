// Where one rank is in its run, for its neighbours on the machine to see: phase, step, stage, microbatch, and how long
// a wait may take before it is worth a report.
#pragma once
#include <string>

#include "parallel/comm/comm_board.h"

namespace gt {

class RankStatus {
 public:
  RankStatus() : slot_(&own_) {}  // nobody looks at it
  explicit RankStatus(RankSlot& slot) : slot_(&slot) {}
  RankStatus(const RankStatus&) = delete;
  RankStatus& operator=(const RankStatus&) = delete;

  // The action that runs; one store, for the executor's loop.
  void at(int stage, int microbatch) { slot_->where.store(pack_where(stage, microbatch), std::memory_order_relaxed); }
  void nowhere() { slot_->where.store(kNowhere, std::memory_order_relaxed); }
  // A phase begins. Durations of steps and evaluations are learned from one call to the next.
  void enter(RunPhase, int64_t step);
  void set_place(const std::string& place) { slot_->place.store(place); }  // "pp1 dp0 tp1"
  // What a wait in a step, but for the first one of the process, may take; 0: max(10 s, 5 x p99 of the steps so far).
  // Else: init, load and save 600 s, the first step 300, evaluations max(60, 5 x p99 of them), 300 the first time.
  void set_step_limit(double seconds) { step_limit_ = seconds; }
  double limit_seconds() const { return static_cast<double>(slot_->warn_ns.load(std::memory_order_relaxed)) * 1e-9; }
  const RankSlot& slot() const { return *slot_; }

 private:
  struct Times {  // the last durations of a phase, seconds
    static constexpr int kKept = 128;
    double kept[kKept] = {};
    int64_t count = 0;
    void add(double s) { kept[count++ % kKept] = s; }
    double p99() const;  // of those kept; 0: none
  };
  double limit_of(RunPhase) const;
  RankSlot own_;
  RankSlot* slot_;
  Times steps_, evals_;
  int64_t entered_ = 0;
  double step_limit_ = 0;
};

}  // namespace gt
