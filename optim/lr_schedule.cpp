#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "kernels/core/check.h"

namespace gt {
namespace {

using Shape01 = double (*)(double);  // decay shape over r in [0, 1], from 1 to its end

const std::map<std::string, Shape01>& shapes() {
  static const std::map<std::string, Shape01> kShapes{
      {"constant", [](double) { return 1.0; }},
      {"cosine", [](double r) { return 0.5 * (1 + std::cos(M_PI * r)); }},
      {"linear", [](double r) { return 1 - r; }},
  };
  return kShapes;
}

class WarmupThen : public LrSchedule {
 public:
  WarmupThen(const LrOptions& o, Shape01 shape) : o_(o), shape_(shape) {}
  double at(int64_t t) const override {
    const auto W = static_cast<double>(o_.warmup_steps), x = static_cast<double>(t);
    if (t <= o_.warmup_steps) return o_.start_lr + (o_.peak - o_.start_lr) * x / W;
    const double span = static_cast<double>(o_.total_steps) - W;
    const double r = span > 0 ? std::min(1.0, (x - W) / span) : 1.0;
    return o_.min_lr + (o_.peak - o_.min_lr) * shape_(r);
  }

 private:
  LrOptions o_;
  Shape01 shape_;
};

}  // namespace

std::vector<std::string> lr_schedule_names() {
  std::vector<std::string> out;
  for (const auto& [name, shape] : shapes()) out.push_back(name);
  return out;
}

std::unique_ptr<LrSchedule> make_lr_schedule(const LrOptions& o) {
  const auto it = shapes().find(o.type);
  GT_REQUIRE(it != shapes().end(), Exit::kUsage, "schedule.type: unknown schedule \"", o.type,
             "\"; there are constant, cosine, linear");
  return std::make_unique<WarmupThen>(o, it->second);
}

}  // namespace gt
