// Reference ops of attention, embeddings, cross-entropy and the optimizer step.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/reference/reference_ops.h"

namespace gt::test::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Index in the rows of a view of element 0 of `head` of row `row`.
size_t index(const HeadView& v, int64_t row, int64_t head, const AttentionSpec& a) {
  return static_cast<size_t>(row * v.pitch() + v.column + head * a.head_dim);
}
int64_t kv_of(const AttentionSpec& a, int64_t head) { return head / (a.heads / a.kv_heads); }

// Dropout factor of the probability that query i assigns to key j in this head.
double head_factor(const AttentionSpec& a, int64_t b, int64_t h, int64_t i, int64_t j) {
  if (!a.drop) return 1;
  const int64_t row = (a.drop.first_head + h) * a.drop.seq + a.first_query + i;
  return drop_factor(a.drop.mask, a.drop.mask.first() + b, row * a.drop.seq + a.first_key + j);
}

// Whether query i of sequence b sees key j: the rule, by positions.
bool sees(const AttentionSpec& a, int64_t b, int64_t i, int64_t j) {
  const int64_t query = a.first_query + i, key = a.first_key + j;
  if (a.full) return !a.lengths || key < static_cast<int64_t>(get(a.lengths, b));
  if (key > query || (a.window > 0 && query - key >= a.window)) return false;
  return !a.documents || query - key <= static_cast<int64_t>(get(a.documents, b * a.queries + i));
}

double capped(double x, double cap) { return cap > 0 ? cap * std::tanh(x / cap) : x; }
// d capped / d x, at a capped value.
double slope(double capped_x, double cap) { return cap > 0 ? 1 - std::pow(capped_x / cap, 2) : 1; }

double dot(const double* a, const double* b, int64_t count) {
  double s = 0;
  for (int64_t d = 0; d < count; ++d) s += a[d] * b[d];
  return s;
}

}  // namespace

void attention(const Attention& p, Stream) {
  const AttentionSpec& a = p.spec;
  const std::vector<double> q = values(p.q.rows), k = values(p.k.rows), v = values(p.v.rows);
  std::vector<double> weight(static_cast<size_t>(a.keys));
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t h = 0; h < a.heads; ++h)
      for (int64_t i = 0; i < a.queries; ++i) {
        const int64_t row = b * a.queries + i, kv = kv_of(a, h);
        double top = -kInfinity, total = 0;
        for (int64_t j = 0; j < a.keys; ++j) {
          double& w = weight[static_cast<size_t>(j)] = -kInfinity;
          if (!sees(a, b, i, j)) continue;
          w = capped(a.scale * dot(&q[index(p.q, row, h, a)], &k[index(p.k, b * a.keys + j, kv, a)], a.head_dim),
                     a.softcap);
          top = std::max(top, w);
        }
        for (double& w : weight) total += w = w == -kInfinity ? 0 : std::exp(w - top);
        for (int64_t d = 0; d < a.head_dim; ++d) {
          double o = 0;
          for (int64_t j = 0; j < a.keys; ++j)
            if (const double w = weight[static_cast<size_t>(j)]; w > 0)
              o += w / total * head_factor(a, b, h, i, j) *
                   v[index(p.v, b * a.keys + j, kv, a) + static_cast<size_t>(d)];
          set(p.out, (row * a.heads + h) * a.head_dim + d, o);
        }
        set(p.lse, (b * a.heads + h) * a.queries + i, top + std::log(total));
      }
}

// P = exp(cap(scale q k) - lse), M its dropout mask; dV = (P M)^T dO; dS = P * (M * dO V^T - rowsum(dO * O)) * cap';
// dQ = scale dS K; dK = scale dS^T Q.
void attention_grad(const AttentionGrad& p, Stream) {
  const AttentionSpec& a = p.spec;
  const std::vector<double> q = values(p.q.rows), k = values(p.k.rows), v = values(p.v.rows);
  const std::vector<double> dout = values(p.dout), out = values(p.out);
  std::vector<double> dq(q.size()), dk(k.size()), dv(v.size());
  const auto add = [&](double* to, double factor, const double* x) {
    for (int64_t d = 0; d < a.head_dim; ++d) to[d] += factor * x[d];
  };
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t h = 0; h < a.heads; ++h)
      for (int64_t i = 0; i < a.queries; ++i) {
        const int64_t row = b * a.queries + i, kv = kv_of(a, h);
        const auto o = static_cast<size_t>((row * a.heads + h) * a.head_dim);
        const size_t at_q = index(p.q, row, h, a);
        const double through = dot(&dout[o], &out[o], a.head_dim);
        const double lse = get(p.lse, (b * a.heads + h) * a.queries + i);
        for (int64_t j = 0; j < a.keys; ++j) {
          if (!sees(a, b, i, j)) continue;
          const size_t at_k = index(p.k, b * a.keys + j, kv, a), at_v = index(p.v, b * a.keys + j, kv, a);
          const double score = capped(a.scale * dot(&q[at_q], &k[at_k], a.head_dim), a.softcap);
          const double weight = std::exp(score - lse), kept = head_factor(a, b, h, i, j);
          const double dscore =
              weight * (kept * dot(&dout[o], &v[at_v], a.head_dim) - through) * slope(score, a.softcap);
          add(&dv[at_v], weight * kept, &dout[o]);
          add(&dq[at_q], a.scale * dscore, &k[at_k]);
          add(&dk[at_k], a.scale * dscore, &q[at_q]);
        }
      }
  const auto put = [&](const HeadView& to, const HeadView& like, const std::vector<double>& from, int64_t rows,
                       int64_t heads) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < heads * a.head_dim; ++c)
        set(to.rows, r * to.pitch() + to.column + c, from[static_cast<size_t>(r * like.pitch() + like.column + c)]);
  };
  put(p.dq, p.q, dq, a.batch * a.queries, a.heads);
  put(p.dk, p.k, dk, a.batch * a.keys, a.kv_heads), put(p.dv, p.v, dv, a.batch * a.keys, a.kv_heads);
}

void embedding(const Embedding& p, Stream) {
  const int64_t cols = p.table.shape.cols(), rows = p.table.shape[0];
  for (int64_t i = 0; i < p.tokens.numel(); ++i) {
    const int64_t row = static_cast<int64_t>(get(p.tokens, i)) - p.first_row;
    const bool inside = row >= 0 && row < rows;
    for (int64_t j = 0; j < cols; ++j) set(p.out, i * cols + j, inside ? get(p.table, row * cols + j) : 0);
  }
}

void embedding_grad(const EmbeddingGrad& p, Stream) {
  const int64_t cols = p.dtable.shape.cols(), rows = p.dtable.shape[0];
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t j = 0; j < cols; ++j) {
      double total = p.accumulate ? get(p.dtable, row * cols + j) : 0;
      for (int64_t i = 0; i < p.tokens.numel(); ++i) {
        if (static_cast<int64_t>(get(p.tokens, i)) == p.first_row + row) total += get(p.dout, i * cols + j);
      }
      set(p.dtable, row * cols + j, total);
    }
  }
}

void add_position(const AddPosition& p, Stream) {
  const int64_t cols = p.x.shape.cols();
  for (int64_t i = 0; i < p.x.numel(); ++i) {
    const int64_t row = position_of_row(p.rows, (p.rows.first_row + i / cols) % p.rows.seq);
    set(p.x, i, get(p.x, i) + get(p.pos, row * cols + i % cols));
  }
}

void position_grad(const PositionGrad& p, Stream) {
  const int64_t cols = p.dpos.shape.cols(), rows = p.dpos.shape[0];
  std::vector<double> sums(static_cast<size_t>(p.dpos.numel()));
  for (int64_t i = 0; i < p.dpos.numel() && p.accumulate; ++i) sums[static_cast<size_t>(i)] = get(p.dpos, i);
  for (int64_t i = 0; i < p.dout.numel(); ++i)
    sums[static_cast<size_t>(position_of_row(p.rows, i / cols % p.rows.seq) * cols + i % cols)] += get(p.dout, i);
  for (int64_t i = 0; i < rows * cols; ++i) set(p.dpos, i, sums[static_cast<size_t>(i)]);
}

namespace {
double z_loss_of(double lse, double c) { return c * lse * lse; }
double softmax_factor(double lse, double c) { return 1 + 2 * c * lse; }
}  // namespace

void cross_entropy(const CrossEntropy& p, Stream) {
  const int64_t rows = p.loss.numel(), cols = p.logits.shape.cols();
  for (int64_t i = 0; i < rows; ++i) {
    const auto target = static_cast<int64_t>(get(p.targets, i));
    const auto z = [&](int64_t j) { return capped(get(p.logits, i * cols + j), p.softcap); };
    double top = -kInfinity, total = 0;
    for (int64_t j = 0; j < p.vocab; ++j) top = std::max(top, z(j));
    for (int64_t j = 0; j < p.vocab; ++j) total += std::exp(z(j) - top);
    const double lse = std::log(total) + top;
    set(p.loss, i, target < 0 ? 0 : lse - z(target) + z_loss_of(lse, p.z_loss));
    if (p.hits) set(p.hits, i, target >= 0 && z(target) >= top ? 1 : 0);
    for (int64_t j = 0; p.dlogits && j < cols; ++j) {
      const double softmax = std::exp(z(j) - top) / total * softmax_factor(lse, p.z_loss);
      const double d = (softmax - (j == target ? 1 : 0)) * slope(z(j), p.softcap) * get(p.seed, 0);
      set(p.dlogits, i * cols + j, target < 0 || j >= p.vocab ? 0 : d);
    }
  }
}

void cross_entropy_stats(const CrossEntropyStats& p, Stream) {
  const int64_t rows = p.logits.shape.rows(), cols = p.logits.shape.cols();
  const int64_t real = std::clamp<int64_t>(p.vocab - p.first_col, 0, cols);  // columns from here on are padding
  for (int64_t i = 0; i < rows; ++i) {
    double top = -kInfinity, total = 0;
    const auto z = [&](int64_t j) { return capped(get(p.logits, i * cols + j), p.softcap); };
    for (int64_t j = 0; j < real; ++j) top = std::max(top, z(j));
    for (int64_t j = 0; j < real; ++j) total += std::exp(z(j) - top);
    const int64_t target = static_cast<int64_t>(get(p.targets, i)), column = target - p.first_col;
    const bool here = target >= 0 && column >= 0 && column < real;
    set(p.stats, i * 3, top);
    set(p.stats, i * 3 + 1, total);
    set(p.stats, i * 3 + 2, here ? z(column) : 0);
  }
}

void cross_entropy_grad(const CrossEntropyGrad& p, Stream) {
  const int64_t rows = p.loss.numel(), cols = p.logits.shape.cols();
  for (int64_t i = 0; i < rows; ++i) {
    const auto stat = [&](int64_t part, int64_t which) { return get(p.stats, (part * rows + i) * 3 + which); };
    double top = -kInfinity, total = 0, z_target = 0;
    for (int64_t r = 0; r < p.parts; ++r) top = std::max(top, stat(r, 0));
    for (int64_t r = 0; r < p.parts; ++r) {
      if (stat(r, 1) > 0) total += stat(r, 1) * std::exp(stat(r, 0) - top);
      z_target += stat(r, 2);
    }
    const int64_t target = static_cast<int64_t>(get(p.targets, i));
    const double lse = std::log(total) + top;
    set(p.loss, i, target < 0 ? 0 : lse - z_target + z_loss_of(lse, p.z_loss));
    if (p.hits) set(p.hits, i, target >= 0 && z_target >= top ? 1 : 0);
    if (!p.dlogits) continue;
    for (int64_t j = 0; j < cols; ++j) {
      const int64_t column = p.first_col + j;
      double d = 0;
      if (target >= 0 && column < p.vocab) {
        const double z = capped(get(p.logits, i * cols + j), p.softcap);
        const double softmax = std::exp(z - top) / total * softmax_factor(lse, p.z_loss);
        d = (softmax - (column == target ? 1 : 0)) * slope(z, p.softcap) * get(p.seed, 0);
      }
      set(p.dlogits, i * cols + j, d);
    }
  }
}

void sum(const Sum& p, Stream) {
  double total = p.accumulate ? get(p.out, 0) : 0;
  for (int64_t i = 0; i < p.x.numel(); ++i) total += get(p.x, i);
  set(p.out, 0, total);
}

void sum_squares(const SumSquares& p, Stream) {
  for (const Segment& s : p.table.segments()) set(p.out, s.group, 0);
  for (const Segment& s : p.table.segments()) {
    const Tensor x{const_cast<std::byte*>(s.grad), {s.count}, p.table.grad, {}};
    double total = get(p.out, s.group);
    for (int64_t i = 0; i < s.count && s.counted != 0; ++i) total += get(x, i) * get(x, i);
    set(p.out, s.group, total);
  }
}

void clip_factor(const ClipFactor& p, Stream) {
  double squares = 0;
  for (int64_t i = 0; i < p.norm_squares.numel(); ++i) squares += get(p.norm_squares, i);
  const double total = std::sqrt(squares) / p.denominator;
  const double factor = p.clip > 0 ? std::min(1.0, p.clip / (total + p.slack)) : 1;
  set(p.scalars, kGradMultiplier, factor / p.denominator);
  bool finite = std::isfinite(total);
  for (int64_t i = 0; p.guard && i < p.guard.numel(); ++i) finite = finite && std::isfinite(get(p.guard, i));
  set(p.scalars, kSkip, finite ? 0 : 1);
  set(p.norm, 0, total);
}

void check_step(const CheckStep& p, Stream) {
  const int64_t sums = p.shares.numel() / 2, n = p.losses.numel() / sums;
  double loss = 0;
  for (int64_t s = 0; s < sums; ++s)
    for (int64_t i = 0; i < n; ++i) {
      const double divisor = get(p.shares, 2 * s + 1);
      const double count =
          divisor > 0 ? std::max(divisor, 1.) : static_cast<double>(n) * std::max(get(p.counts, i), 1.);
      loss += get(p.shares, 2 * s) * get(p.losses, s * n + i) / count;
    }
  const auto bad = [&](double x, int middle) {
    const double far = (x - get(p.limits, middle)) / get(p.limits, middle + 1);
    return !std::isfinite(x) || far > get(p.limits, kMaxDeviations);
  };
  if (get(p.scalars, kSkip) != 0 || !(bad(loss, kLossMedian) || bad(get(p.norm, 0), kNormMedian))) return;
  set(p.scalars, kSkip, 1);
  set(p.scalars, kAnomalous, 1);
}

}  // namespace gt::test::reference
