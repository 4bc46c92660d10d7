// Progress of one rank, readable by the ranks of its machine: phase, step, stage, microbatch, and how long a wait may
// take before it is reported.
#pragma once
#include <string>

#include "parallel/comm/watch/comm_board.h"

namespace gt {

class RankStatus {
 public:
  RankStatus() : slot_(&own_) {}  // read by no one
  explicit RankStatus(RankSlot& slot) : slot_(&slot) {}
  RankStatus(const RankStatus&) = delete;
  RankStatus& operator=(const RankStatus&) = delete;

  // The running action; one store, for the executor's loop.
  void at(int stage, int microbatch) {
    slot_->where.store(pack_position(stage, microbatch), std::memory_order_relaxed);
  }
  void nowhere() { slot_->where.store(kNoPosition, std::memory_order_relaxed); }
  // Begins a phase. Durations of steps and evaluations are measured from one call to the next.
  void enter(RunPhase, int64_t step);
  void set_coordinates(const std::string& coordinates) { slot_->coordinates.store(coordinates); }  // "pp1 dp0 tp1"
  // Limit for a wait in a step, except the first one of the process; 0: max(10 s, 5 x p99 of the steps so far). Other
  // phases: init, load and save 600 s, the first step 300 s, evaluations max(60 s, 5 x their p99), the first one 300 s.
  void set_step_limit(double seconds) { step_limit_ = seconds; }
  double limit_seconds() const { return static_cast<double>(slot_->warn_ns.load(std::memory_order_relaxed)) * 1e-9; }
  const RankSlot& slot() const { return *slot_; }

 private:
  struct Times {  // recent durations of a phase, seconds
    static constexpr int kKept = 128;
    double kept[kKept] = {};
    int64_t count = 0;
    void add(double s) { kept[count++ % kKept] = s; }
    double p99() const;  // over those kept; 0: none
  };
  double limit_of(RunPhase) const;
  RankSlot own_;
  RankSlot* slot_;
  Times steps_, evals_;
  int64_t entered_ = 0;
  double step_limit_ = 0;
};

}  // namespace gt
