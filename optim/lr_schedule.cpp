#include "optim/lr_schedule.h"

#include <algorithm>

#include "kernels/core/check.h"
#include "optim/lr_families.h"

namespace gt {
namespace {

struct Entry {
  const char* name;
  std::unique_ptr<LrSchedule> (*make)(const LrOptions&);
};
constexpr Entry kSchedules[] = {
    {"cosine", make_native},
    {"linear", make_native},
    {"constant", make_native},
    {"inverse_sqrt", make_native},
    {"wsd", make_native},
    {"one_cycle_torch", make_one_cycle_torch},
    {"one_cycle", make_deepspeed},
    {"warmup", make_deepspeed},
    {"warmup_decay", make_deepspeed},
    {"warmup_cosine", make_deepspeed},
    {"lr_range_test", make_deepspeed},
};

// Evaluates a curve over samples at steps.
class OverSamples : public LrSchedule {
 public:
  OverSamples(std::unique_ptr<LrSchedule> curve, const LrOptions& o) : curve_(std::move(curve)), o_(o) {}
  LrPoint at(int64_t t) const override {
    return curve_->at(std::max<int64_t>(1, o_.samples_before + (t - o_.steps_before) * o_.samples_per_step));
  }

 private:
  std::unique_ptr<LrSchedule> curve_;
  const LrOptions o_;
};

}  // namespace

std::vector<std::string> lr_schedule_names() {
  std::vector<std::string> out;
  for (const Entry& e : kSchedules) out.emplace_back(e.name);
  return out;
}

std::unique_ptr<LrSchedule> make_lr_schedule(const LrOptions& o) {
  std::string known;
  for (const Entry& e : kSchedules) {
    if (o.type == e.name && o.samples_per_step > 0) return std::make_unique<OverSamples>(e.make(o), o);
    if (o.type == e.name) return e.make(o);
    known += (known.empty() ? "" : ", ") + std::string(e.name);
  }
  fail(Exit::kUsage, "schedule.type: unknown schedule \"", o.type, "\"; there are ", known);
}

}  // namespace gt
