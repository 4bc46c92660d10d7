#include "parallel/comm/watch/rank_status.h"

#include <algorithm>
#include <array>

#include "parallel/comm/watch/stall_report.h"

namespace gt {

double RankStatus::Times::p99() const {
  const int64_t n = std::min<int64_t>(count, kKept);
  if (n == 0) return 0;
  std::array<double, kKept> sorted;
  std::copy_n(kept, n, sorted.begin());
  const int64_t at = (99 * n + 99) / 100 - 1;  // nearest rank
  std::nth_element(sorted.begin(), sorted.begin() + at, sorted.begin() + n);
  return sorted[static_cast<size_t>(at)];
}

double RankStatus::limit_of(RunPhase p) const {
  switch (p) {
    case RunPhase::kFirstStep: return 300;
    case RunPhase::kStep: return step_limit_ > 0 ? step_limit_ : std::max(kStepLimitSeconds, 5 * steps_.p99());
    case RunPhase::kEval: return evals_.count == 0 ? 300 : std::max(60.0, 5 * evals_.p99());
    default: return 600;
  }
}

void RankStatus::enter(RunPhase p, int64_t step) {
  const int64_t now = steady_ns();
  const RunPhase before = slot_->phase.load(std::memory_order_relaxed);
  const double seconds = static_cast<double>(now - entered_) * 1e-9;
  if (before == RunPhase::kStep) steps_.add(seconds);
  if (before == RunPhase::kEval) evals_.add(seconds);
  entered_ = now;
  slot_->where.store(kNoPosition, std::memory_order_relaxed);
  slot_->step.store(step, std::memory_order_relaxed);
  slot_->warn_ns.store(static_cast<int64_t>(limit_of(p) * 1e9), std::memory_order_relaxed);
  slot_->phase.store(p, std::memory_order_relaxed);
}

}  // namespace gt
