#include "launch/commands/generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/core/check.h"

namespace gt {

int32_t sample_token(std::span<const float> logits, const SamplerOptions& o, double uniform) {
  GT_CHECK(!logits.empty(), "no logits");
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto likelier = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (o.temperature == 0) return *std::min_element(ids.begin(), ids.end(), likelier);
  size_t keep = o.top_k > 0 ? std::min(ids.size(), static_cast<size_t>(o.top_k)) : ids.size();
  std::partial_sort(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(keep), ids.end(), likelier);
  std::vector<double> p(keep);
  const double top = logits[static_cast<size_t>(ids[0])];
  for (size_t i = 0; i < keep; ++i) p[i] = std::exp((logits[static_cast<size_t>(ids[i])] - top) / o.temperature);
  double total = std::accumulate(p.begin(), p.end(), 0.0), mass = 0;
  for (size_t i = 0; i < keep; ++i) {  // the smallest set that makes up top_p
    mass += p[i];
    if (mass >= o.top_p * total) {
      keep = i + 1;
      total = mass;
      break;
    }
  }
  double left = uniform * total;
  for (size_t i = 0; i < keep; ++i)
    if ((left -= p[i]) < 0) return ids[i];
  return ids[keep - 1];
}

}  // namespace gt
