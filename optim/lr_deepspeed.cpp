// DeepSpeed's schedules in two forms. Exact: the values of DeepSpeed 0.19.6, whose counters start two steps late (i = t
// - 2). Corrected: the same curves from the first step on, with momentum that starts and decays as intended.
#include <algorithm>
#include <cmath>

#include "kernels/core/check.h"
#include "optim/lr_families.h"

namespace gt {
namespace {

double number(int64_t x) { return static_cast<double>(x); }

class Warmup : public LrSchedule {
 public:
  explicit Warmup(const LrOptions& o)
      : o_(o), n_(std::max<int64_t>(2, o.warmup_steps)), log_(o.warmup_type == WarmupShape::kLog) {}
  LrPoint at(int64_t t) const override {
    const double gamma = o_.ds_exact ? (t == 1 ? 0 : exact(t - 2)) : corrected(t);
    return {o_.start_lr + (o_.peak - o_.start_lr) * gamma};
  }

 protected:
  double exact(int64_t i) const { return i < n_ ? exact_rise(i) : end(i); }
  double corrected(int64_t t) const { return t <= n_ ? corrected_rise(t) : end(t); }
  virtual double end(int64_t) const { return 1; }
  double exact_rise(int64_t i) const {
    return log_ ? std::log(number(i + 1)) / std::log(number(n_)) : number(i) / number(n_);
  }
  double corrected_rise(int64_t t) const {
    if (t >= n_) return 1;
    return log_ ? std::log(number(1 + t)) / std::log(number(1 + n_)) : number(t) / number(n_);
  }
  double span() const { return number(std::max<int64_t>(1, o_.total_steps - n_)); }
  const LrOptions o_;
  const int64_t n_;
  const bool log_;
};

class WarmupDecay : public Warmup {
 public:
  using Warmup::Warmup;
  double end(int64_t i) const override { return std::max(0.0, number(o_.total_steps - i) / span()); }
};

class WarmupCosine : public Warmup {
 public:
  using Warmup::Warmup;
  LrPoint at(int64_t t) const override {
    if (!o_.ds_exact) return {o_.peak * (t <= n_ ? rising(corrected_rise(t)) : falling(t - n_))};
    if (t == 1) return {0};
    const int64_t i = t - 2;
    return {o_.peak * (i < n_ ? rising(exact_rise(i)) : falling(i - n_ + 1))};
  }

 private:
  double rising(double gamma) const { return o_.warmup_min_ratio + (1 - o_.warmup_min_ratio) * gamma; }
  double falling(int64_t steps) const {
    const double x = std::min(1.0, number(steps) / span());
    return o_.cos_min_ratio + (1 - o_.cos_min_ratio) * (1 + std::cos(M_PI * x)) / 2;
  }
};

class OneCycle : public LrSchedule {
 public:
  explicit OneCycle(const LrOptions& o)
      : o_(o),
        first_(number(o.first_steps)),
        second_(number(o.second_steps >= 0 ? o.second_steps : o.first_steps)),
        stairs_up_(number(o.first_stairs)),
        stairs_down_(number(o.second_stairs >= 0 ? o.second_stairs : o.first_stairs)) {}

  LrPoint at(int64_t t) const override {
    const double b = number(t - 1), cycle = first_ + second_;
    LrPoint p;
    double momentum;
    if (b <= cycle) {
      const double k = b <= first_ ? stair(b, first_, stairs_up_) : stair(cycle - b, second_, stairs_down_);
      p.lr = o_.min_lr + (o_.peak - o_.min_lr) * k;
      momentum = o_.ds_exact && t == 1 ? o_.min_momentum : o_.max_momentum - (o_.max_momentum - o_.min_momentum) * k;
    } else {
      const double delta = o_.decay_step_size > 0 ? (b - cycle) / number(o_.decay_step_size) : 0;
      const double growth = 1 + o_.decay_mom_rate * delta;
      p.lr = o_.min_lr / (1 + o_.decay_lr_rate * delta);
      momentum = o_.ds_exact ? o_.max_momentum * growth : std::max(o_.min_momentum, o_.max_momentum / growth);
    }
    if (o_.cycle_momentum) {
      p.beta1 = momentum;
      if (o_.ds_exact) p.beta2 = 0.99;
    }
    return p;
  }

 private:
  static double stair(double x, double size, double stairs) {
    return stairs > 0 ? std::floor(x * stairs / size) / stairs : x / size;
  }
  const LrOptions o_;
  const double first_, second_, stairs_up_, stairs_down_;
};

class RangeTest : public LrSchedule {
 public:
  explicit RangeTest(const LrOptions& o) : o_(o) {}
  LrPoint at(int64_t t) const override {
    const double x = number(t - 1) / number(o_.range_steps);
    return {o_.start_lr * (1 + o_.range_rate * (o_.range_staircase ? std::floor(x) : x))};
  }

 private:
  const LrOptions o_;
};

bool is_warmup(const std::string& type) { return type.rfind("warmup", 0) == 0; }

std::unique_ptr<LrSchedule> make_checked_one_cycle(const LrOptions& o) {
  auto schedule = std::make_unique<OneCycle>(o);
  const double last = schedule->at(std::max<int64_t>(1, o.total_steps)).beta1;
  GT_REQUIRE(last < 1, Exit::kUsage, "schedule.decay_mom_rate: DeepSpeed's form lets beta1 grow to ", last, " at step ",
             o.total_steps, " (it has to stay below 1); use schedule.ds_exact false, or a smaller rate");
  return schedule;
}

}  // namespace

std::unique_ptr<LrSchedule> make_deepspeed(const LrOptions& o) {
  if (o.type == "lr_range_test") return std::make_unique<RangeTest>(o);
  if (o.type == "one_cycle") return make_checked_one_cycle(o);
  if (o.type == "warmup_decay") return std::make_unique<WarmupDecay>(o);
  if (o.type == "warmup_cosine") return std::make_unique<WarmupCosine>(o);
  return std::make_unique<Warmup>(o);
}

std::vector<std::string> lr_deviations(const LrOptions& o) {
  std::vector<std::string> out;
  if (!o.ds_exact) return out;
  if (o.type == "warmup" || o.type == "warmup_decay")
    out.push_back(cat("steps 1 and 2 run at schedule.start_lr ", o.start_lr));
  if (o.type == "warmup_cosine") {
    out.push_back("step 1 runs at a learning rate of 0");
    if (o.warmup_type == WarmupShape::kLinear) out.push_back("the peak is never reached");
  }
  if (is_warmup(o.type)) out.push_back("the curve runs two steps late");
  if (o.type == "one_cycle" && o.cycle_momentum) {
    out.push_back(
        cat("step 1 runs at beta1 ", o.min_momentum, ", the low end, though its learning rate is the lowest"));
    out.push_back("beta2 is 0.99 regardless of optim.betas");
    if (o.decay_mom_rate > 0 && o.decay_step_size > 0) out.push_back("beta1 grows after the cycle");
  }
  return out;
}

}  // namespace gt
