#include "data/samples/curriculum.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/check.h"

namespace gt {

int64_t Curriculum::length(int64_t t) const {
  if (type == CurriculumType::kFixedDiscrete) {
    size_t i = 0;
    while (i < until.size() && t > until[i]) ++i;
    return lengths[i];
  }
  GT_CHECK(type != CurriculumType::kNone, "no curriculum is enabled");
  if (t > steps) return max;  // the formula is increasing beyond
  const double power = type == CurriculumType::kFixedRoot ? 1.0 / static_cast<double>(root) : 1;
  const double part = std::pow(static_cast<double>(t) / static_cast<double>(steps), power);
  const auto d = static_cast<int64_t>(std::floor(part * static_cast<double>(max - min) + static_cast<double>(min)));
  return std::min(d - d % step, max);
}

std::vector<int64_t> Curriculum::all_lengths() const {
  std::vector<int64_t> out;
  if (type == CurriculumType::kFixedDiscrete) out = lengths;
  if (type == CurriculumType::kFixedLinear || type == CurriculumType::kFixedRoot) {
    out = {max};
    for (int64_t d = min - min % step; d < max; d += step) out.push_back(d);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace gt
