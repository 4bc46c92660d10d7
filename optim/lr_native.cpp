// For t <= W: start + (peak - start) t / W, so that the first step is above start. Then min + (peak - min) c(r) with
//   constant, linear, cosine   r = min(1, (t - W) / (T - W)), c = 1, 1 - r, (1 + cos pi r) / 2
//   wsd                        r = (t - T + D) / D from 0 to 1, c by decay_shape (Hu et al. 2024, MiniCPM)
// and inverse_sqrt: max(min, peak sqrt(max(W, 1) / t)) (Vaswani et al. 2017).
#include <algorithm>
#include <cmath>

#include "kernels/core/check.h"
#include "optim/lr_families.h"

namespace gt {
namespace {

using Shape = double (*)(double);  // over r in [0, 1], starting at 1

struct NamedShape {
  const char* name;
  Shape shape;
};
double constant(double) { return 1; }
double linear(double r) { return 1 - r; }
double cosine(double r) { return 0.5 * (1 + std::cos(M_PI * r)); }
double exponential(double r) { return 2 * std::pow(0.5, r) - 1; }
double minus_sqrt(double r) { return 1 - std::sqrt(r); }
constexpr NamedShape kWhole[] = {{"constant", constant}, {"linear", linear}, {"cosine", cosine}};
constexpr Shape kDecayShapes[] = {linear, cosine, exponential, minus_sqrt};  // by DecayShape

class Native : public LrSchedule {
 public:
  explicit Native(const LrOptions& o)
      : o_(o), warm_(static_cast<double>(o.warmup_steps)), total_(static_cast<double>(o.total_steps)) {}
  LrPoint at(int64_t t) const override {
    const auto x = static_cast<double>(t);
    if (t <= o_.warmup_steps) return {o_.start_lr + (o_.peak - o_.start_lr) * x / warm_};
    return {after(x)};
  }

 protected:
  virtual double after(double t) const = 0;
  double between(double c) const { return o_.min_lr + (o_.peak - o_.min_lr) * c; }
  const LrOptions o_;
  const double warm_, total_;
};

class Decay : public Native {
 public:
  Decay(const LrOptions& o, Shape shape) : Native(o), shape_(shape) {}
  double after(double t) const override {
    const double span = total_ - warm_;
    return between(shape_(span > 0 ? std::min(1.0, (t - warm_) / span) : 1.0));
  }

 private:
  Shape shape_;
};

class WarmStableDecay : public Native {
 public:
  WarmStableDecay(const LrOptions& o, Shape shape)
      : Native(o),
        shape_(shape),
        tail_(static_cast<double>(o.decay_steps > 0 ? o.decay_steps : std::max<int64_t>(1, o.total_steps / 10))) {}
  double after(double t) const override { return between(shape_(std::clamp((t - total_ + tail_) / tail_, 0.0, 1.0))); }

 private:
  Shape shape_;
  double tail_;
};

class InverseSqrt : public Native {
 public:
  using Native::Native;
  double after(double t) const override { return std::max(o_.min_lr, o_.peak * std::sqrt(std::max(warm_, 1.0) / t)); }
};

}  // namespace

std::unique_ptr<LrSchedule> make_native(const LrOptions& o) {
  for (const NamedShape& s : kWhole)
    if (o.type == s.name) return std::make_unique<Decay>(o, s.shape);
  if (o.type == "inverse_sqrt") return std::make_unique<InverseSqrt>(o);
  GT_REQUIRE(o.decay_steps <= o.total_steps - o.warmup_steps || o.decay_steps == 0, Exit::kUsage,
             "schedule.decay_steps: ", o.decay_steps, " steps of decay after ", o.warmup_steps,
             " steps of warm-up are more than the ", o.total_steps, " steps of the schedule; at most ",
             std::max<int64_t>(0, o.total_steps - o.warmup_steps));
  return std::make_unique<WarmStableDecay>(o, kDecayShapes[static_cast<size_t>(o.decay_shape)]);
}

}  // namespace gt
