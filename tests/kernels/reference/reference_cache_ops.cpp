// Reference ops of the KV cache.
#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/kernels/reference/reference_ops.h"

namespace gt::test::reference {
namespace {

// Cache element of row r's token in KV head `head`.
template <class P>
int64_t cache_index(const P& p, int64_t r, int64_t head) {
  const Shape& s = p.keys.shape;
  const auto sequence = static_cast<int64_t>(get(p.sequences, r)), position = static_cast<int64_t>(get(p.positions, r));
  return ((sequence * s[1] + head) * s[2] + position) * s[3];
}

}  // namespace

void store_kv(const StoreKv& p, Stream) {
  const int64_t kv = p.keys.shape[1], dim = p.keys.shape[3];
  for (int64_t r = 0; r < p.positions.numel(); ++r)
    for (int64_t h = 0; h < kv; ++h)
      for (int64_t d = 0; d < dim; ++d) {
        set(p.keys, cache_index(p, r, h) + d, get(p.k.rows, r * p.k.pitch() + p.k.column + h * dim + d));
        set(p.values, cache_index(p, r, h) + d, get(p.v.rows, r * p.v.pitch() + p.v.column + h * dim + d));
      }
}

void cached_attention(const CachedAttention& p, Stream) {
  const int64_t kv = p.keys.shape[1], dim = p.keys.shape[3];
  for (int64_t r = 0; r < p.positions.numel(); ++r)
    for (int64_t h = 0; h < p.heads; ++h) {
      const auto last = static_cast<int64_t>(get(p.positions, r));
      const int64_t first = p.window > 0 ? std::max<int64_t>(0, last - p.window + 1) : 0;
      const int64_t begin = cache_index(p, r, h / (p.heads / kv)) - last * dim,
                    q = r * p.q.pitch() + p.q.column + h * dim;
      std::vector<double> weight;
      double top = -HUGE_VAL, total = 0;
      for (int64_t j = first; j <= last; ++j) {
        double score = 0;
        for (int64_t d = 0; d < dim; ++d) score += p.scale * get(p.q.rows, q + d) * get(p.keys, begin + j * dim + d);
        weight.push_back(p.softcap > 0 ? p.softcap * std::tanh(score / p.softcap) : score);
        top = std::max(top, weight.back());
      }
      for (double& w : weight) total += w = std::exp(w - top);
      for (int64_t d = 0; d < dim; ++d) {
        double o = 0;
        for (int64_t j = first; j <= last; ++j)
          o += weight[static_cast<size_t>(j - first)] / total * get(p.values, begin + j * dim + d);
        set(p.out, (r * p.heads + h) * dim + d, o);
      }
    }
}

}  // namespace gt::test::reference
