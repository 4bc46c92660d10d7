// torch.optim.lr_scheduler.OneCycleLR (after Smith & Topin 2018). Phases end at pct T - 1 and T - 1, or with
// three_phase at pct T - 1, 2 pct T - 2 and T - 1. Within each phase, lr and momentum are annealed linearly or by half
// a cosine. After T the last value is kept.
#include <algorithm>
#include <cmath>

#include "kernels/core/check.h"
#include "optim/lr_families.h"

namespace gt {
namespace {

class OneCycleTorch : public LrSchedule {
 public:
  explicit OneCycleTorch(const LrOptions& o) : o_(o), last_(static_cast<double>(o.total_steps) - 1) {
    const double initial = o.peak / o.div_factor, end = initial / o.final_div_factor;
    const double low = o.min_momentum, high = o.max_momentum, rise = o.pct_start * static_cast<double>(o.total_steps);
    add(rise - 1, initial, o.peak, high, low);
    if (o.three_phase) {
      add(2 * rise - 2, o.peak, initial, low, high);
      add(last_, initial, end, high, high);
    } else {
      add(last_, o.peak, end, low, high);
    }
  }

  LrPoint at(int64_t t) const override {
    const double n = std::min(static_cast<double>(t - 1), last_);
    double begin = 0;
    int k = 0;
    while (k + 1 < phases_ && n > phase_[k].end) begin = phase_[k++].end;
    const Phase& p = phase_[k];
    const double span = p.end - begin, x = span > 0 ? (n - begin) / span : 1;
    return {between(p.lr[0], p.lr[1], x), o_.cycle_momentum ? between(p.momentum[0], p.momentum[1], x) : kKeepBeta};
  }

 private:
  struct Phase {
    double end, lr[2], momentum[2];
  };
  void add(double end, double lr0, double lr1, double m0, double m1) {
    phase_[phases_++] = {end, {lr0, lr1}, {m0, m1}};
  }
  double between(double from, double to, double x) const {
    return o_.anneal == Anneal::kLinear ? from + (to - from) * x : to + (from - to) / 2 * (1 + std::cos(M_PI * x));
  }
  LrOptions o_;
  double last_;
  Phase phase_[3];
  int phases_ = 0;
};

}  // namespace

std::unique_ptr<LrSchedule> make_one_cycle_torch(const LrOptions& o) {
  GT_REQUIRE(!o.three_phase || o.pct_start <= 0.5, Exit::kUsage, "schedule.pct_start: ", o.pct_start,
             " with schedule.three_phase: the rise and an equally long fall exceed the run; use at most 0.5");
  return std::make_unique<OneCycleTorch>(o);
}

}  // namespace gt
