#include "launch/tools/generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/core/check.h"

namespace gt {

int32_t sample_token(std::span<const float> logits, const SamplerOptions& o, double uniform) {
  GT_CHECK(!logits.empty(), "no logits");
  const bool usable = std::none_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); }) &&
                      std::isfinite(*std::max_element(logits.begin(), logits.end()));
  GT_REQUIRE(usable, Exit::kNumerical,
             "the model's logits are not finite: its weights hold NaN or infinity, or overflow in this precision");
  if (o.temperature == 0) return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const auto logit = [&](int32_t id) { return logits[static_cast<size_t>(id)]; };
  const auto less_likely = [&](int32_t a, int32_t b) { return logit(a) != logit(b) ? logit(a) < logit(b) : a > b; };
  // A heap, because only few tokens of the vocabulary have to be sorted.
  std::vector<int32_t> rest(logits.size()), best;  // best: in descending probability
  std::iota(rest.begin(), rest.end(), 0);
  std::make_heap(rest.begin(), rest.end(), less_likely);
  const double top = logit(rest.front());
  const auto weight = [&](int32_t id) { return std::exp((logit(id) - top) / o.temperature); };
  std::vector<double> p;  // of best, not normalized
  const auto take_next = [&] {
    std::pop_heap(rest.begin(), rest.end(), less_likely);
    best.push_back(rest.back());
    rest.pop_back();
    return p.emplace_back(weight(best.back()));
  };
  const size_t most = o.top_k > 0 ? std::min(logits.size(), static_cast<size_t>(o.top_k)) : logits.size();
  double total = 0, mass = 0;
  if (most < logits.size()) {
    while (best.size() < most) total += take_next();
  } else {
    for (const int32_t id : rest) total += weight(id);
  }
  // the smallest set with probability top_p; otherwise only as far as the draw reaches
  const bool nucleus = o.top_p < 1;
  size_t keep = 0;
  while (keep < most && (nucleus ? mass < o.top_p * total : mass <= uniform * total)) {
    if (keep == best.size()) take_next();
    mass += p[keep++];
  }
  if (!nucleus) return best[keep - 1];
  double left = uniform * mass;
  for (size_t i = 0; i < keep; ++i)
    if ((left -= p[i]) < 0) return best[i];
  return best[keep - 1];
}

}  // namespace gt
