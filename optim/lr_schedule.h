// Learning-rate schedules: at(t) is a pure function of the applied step t = 1, 2, …, so a resume needs no state.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gt {

struct LrOptions {
  std::string type = "cosine";  // cosine | linear | constant
  double peak = 3e-4, min_lr = 0, start_lr = 0;
  int64_t warmup_steps = 0, total_steps = 1;
};

class LrSchedule {
 public:
  virtual ~LrSchedule() = default;
  virtual double at(int64_t t) const = 0;
};

// For t <= W: start + (peak - start) t / W. Then, with r = min(1, (t-W)/(T-W)): min + (peak - min) c, where c is 1
// (constant), 1 - r (linear) or (1 + cos pi r)/2 (cosine). Throws kUsage on an unknown type, listing the known ones.
std::unique_ptr<LrSchedule> make_lr_schedule(const LrOptions&);
std::vector<std::string> lr_schedule_names();

}  // namespace gt
