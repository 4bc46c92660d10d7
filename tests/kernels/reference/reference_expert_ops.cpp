// Reference ops of routed layers.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tests/kernels/reference/reference_ops.h"

namespace gt::test::reference {
namespace {

int64_t id(const Tensor& t, int64_t i) { return static_cast<int64_t>(get(t, i)); }

// Scores of all experts of token t.
std::vector<double> scores_of(const Tensor& logits, int64_t t, GateKind kind) {
  const int64_t count = logits.shape.cols();
  std::vector<double> s;
  for (int64_t e = 0; e < count; ++e) {
    const double z = get(logits, t * count + e);
    s.push_back(kind == GateKind::kSigmoid ? 1 / (1 + std::exp(-z)) : std::exp(z));
  }
  const double sum = std::accumulate(s.begin(), s.end(), 0.);
  if (kind == GateKind::kSoftmax)
    for (double& x : s) x /= sum;
  return s;
}

// d(score i)/d(logit j).
double score_slope(GateKind kind, const std::vector<double>& s, size_t i, size_t j) {
  if (kind == GateKind::kSigmoid) return i == j ? s[i] * (1 - s[i]) : 0;
  return s[i] * ((i == j ? 1 : 0) - s[j]);
}

// What the experts of a token are chosen by: its logits, or scores plus bias, of the best groups alone.
std::vector<double> choice_of(const Route& p, const std::vector<double>& scores, int64_t t) {
  std::vector<double> out = scores;
  const auto size = scores.size() / static_cast<size_t>(p.gate.groups);
  for (size_t e = 0; e < out.size(); ++e) {
    if (!p.bias && p.gate.groups == 1)
      out[e] = get(p.logits, t * p.logits.shape.cols() + static_cast<int64_t>(e));
    else if (p.bias)
      out[e] += get(p.bias, static_cast<int64_t>(e));
  }
  if (p.gate.groups == 1) return out;
  std::vector<std::pair<double, size_t>> groups;  // negative sums of the two best, for an ascending sort
  for (size_t g = 0; g < out.size(); g += size) {
    std::vector<double> sorted(out.begin() + static_cast<ptrdiff_t>(g), out.begin() + static_cast<ptrdiff_t>(g + size));
    std::sort(sorted.begin(), sorted.end());
    groups.emplace_back(-sorted[size - 1] - sorted[size - 2], g);
  }
  std::sort(groups.begin(), groups.end());
  for (size_t k = static_cast<size_t>(p.gate.top_groups); k < groups.size(); ++k)
    std::fill_n(out.begin() + static_cast<ptrdiff_t>(groups[k].second), size, -1e300);
  return out;
}

}  // namespace

void route(const Route& p, Stream) {
  const int64_t k = p.experts.shape.cols();
  for (int64_t t = 0; t < p.logits.shape.rows(); ++t) {
    const std::vector<double> s = scores_of(p.logits, t, p.gate.kind), by = choice_of(p, s, t);
    std::vector<int64_t> order(s.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return by[static_cast<size_t>(a)] > by[static_cast<size_t>(b)]; });
    double sum = 0;
    for (int64_t j = 0; j < k; ++j) sum += s[static_cast<size_t>(order[static_cast<size_t>(j)])];
    for (int64_t j = 0; j < k; ++j) {
      const int64_t e = order[static_cast<size_t>(j)];
      set(p.experts, t * k + j, static_cast<double>(e));
      if (p.counts) set(p.counts, e, get(p.counts, e) + 1);
      set(p.weights, t * k + j, p.gate.scale * s[static_cast<size_t>(e)] / (p.gate.normalize ? sum : 1));
    }
  }
}

void route_grad(const RouteGrad& p, Stream) {
  const int64_t count = p.logits.shape.cols(), k = p.experts.shape.cols();
  for (int64_t t = 0; t < p.logits.shape.rows(); ++t) {
    const std::vector<double> s = scores_of(p.logits, t, p.gate.kind);
    double sum = 0;
    for (int64_t j = 0; j < k; ++j) sum += s[static_cast<size_t>(id(p.experts, t * k + j))];
    std::vector<double> ds(s.size());  // dL/d(score)
    for (int64_t j = 0; j < k; ++j) {
      const auto e = static_cast<size_t>(id(p.experts, t * k + j));
      const double dw = p.gate.scale * get(p.dweights, t * k + j);
      ds[e] += p.gate.normalize ? dw / sum : dw;
      for (int64_t i = 0; p.gate.normalize && i < k; ++i)
        ds[static_cast<size_t>(id(p.experts, t * k + i))] -= dw * s[e] / (sum * sum);
    }
    for (int64_t j = 0; j < count; ++j) {
      double dz = p.accumulate ? get(p.dlogits, t * count + j) : 0;
      for (size_t i = 0; i < s.size(); ++i) dz += ds[i] * score_slope(p.gate.kind, s, i, static_cast<size_t>(j));
      set(p.dlogits, t * count + j, dz);
    }
  }
}

void balance_loss(const BalanceLoss& p, Stream) {
  const int64_t count = p.logits.shape.cols(), k = p.experts.shape.cols(), seq = p.seq;
  for (int64_t q = 0; q < p.loss.numel(); ++q) {
    std::vector<double> often(static_cast<size_t>(count)), mean(often.size());
    for (int64_t i = q * seq * k; i < (q + 1) * seq * k; ++i)
      often[static_cast<size_t>(id(p.experts, i))] += static_cast<double>(count) / static_cast<double>(k * seq);
    for (int64_t t = q * seq; t < (q + 1) * seq; ++t) {
      const std::vector<double> s = scores_of(p.logits, t, p.kind);
      const double sum = std::accumulate(s.begin(), s.end(), 0.), n = static_cast<double>(seq);
      for (size_t e = 0; e < s.size(); ++e) mean[e] += s[e] / sum / n;
      for (size_t j = 0; p.dlogits && j < s.size(); ++j) {
        double dz = 0;
        for (size_t i = 0; i < s.size(); ++i)
          for (size_t o = 0; o < s.size(); ++o)  // share o = score o / sum changes with score i
            dz += often[o] / n * ((i == o ? 1 : 0) / sum - s[o] / (sum * sum)) * score_slope(p.kind, s, i, j);
        set(p.dlogits, t * count + static_cast<int64_t>(j), get(p.seed, 0) * dz);
      }
    }
    set(p.loss, q, std::inner_product(often.begin(), often.end(), mean.begin(), 0.));
  }
}

void group_rows(const GroupRows& p, Stream) {
  int64_t row = 0;
  for (int64_t e = 0; e < p.offsets.numel(); ++e) {
    set(p.offsets, e, static_cast<double>(row));
    for (int64_t i = 0; i < p.experts.numel(); ++i) {
      if (id(p.experts, i) != e) continue;
      set(p.slots, row, static_cast<double>(i));
      set(p.rows, i, static_cast<double>(row++));
    }
  }
}

void send_rows(const SendRows& p, Stream) {
  const int64_t ranks = p.counts.shape[0], k = p.experts.shape.cols(), n = p.experts.numel() / k;
  int64_t row = 0, copy = 0;
  for (int64_t d = 0; d < ranks; ++d) {
    const int64_t first_row = row, first_copy = copy;
    for (int64_t t = 0; t < n; ++t) {
      bool sent = false;
      for (int64_t j = 0; j < k; ++j) {
        const int64_t e = id(p.experts, t * k + j);
        if (e * ranks / p.count != d) continue;
        if (!sent) set(p.copies, copy++, static_cast<double>(t)), sent = true;
        set(p.slots, row, static_cast<double>(t * k + j));
        set(p.rows, t * k + j, static_cast<double>(row));
        set(p.parts, 2 * row, static_cast<double>(copy - 1 - first_copy));
        set(p.parts, 2 * row++ + 1, static_cast<double>(e % (p.count / ranks)));
      }
    }
    set(p.counts, 2 * d, static_cast<double>(copy - first_copy));
    set(p.counts, 2 * d + 1, static_cast<double>(row - first_row));
  }
}

void receive_rows(const ReceiveRows& p, Stream) {
  std::vector<int64_t> first;  // copy of the rank of each part
  int64_t before = 0, row = 0;
  for (int64_t d = 0; d < p.counts.shape[0]; ++d) {
    first.insert(first.end(), static_cast<size_t>(id(p.counts, 2 * d + 1)), before);
    before += id(p.counts, 2 * d);
  }
  for (int64_t e = 0; e < p.offsets.numel(); ++e) {
    set(p.offsets, e, static_cast<double>(row));
    for (int64_t i = 0; i < p.slots.numel(); ++i) {
      if (id(p.parts, 2 * i + 1) != e) continue;
      set(p.slots, row, static_cast<double>(i));
      set(p.tokens, row, static_cast<double>(first[static_cast<size_t>(i)] + id(p.parts, 2 * i)));
      set(p.rows, i, static_cast<double>(row++));
    }
  }
}

void grouped_gemm(const GroupedGemm& p, Stream) {
  const int64_t n = p.out.shape.cols(), k = p.a.shape.cols();
  for (int64_t e = 0; e < p.b.shape[0]; ++e)
    for (int64_t r = id(p.offsets, e); r < id(p.offsets, e + 1); ++r) {
      const int64_t from = p.slots ? id(p.slots, r) / p.top_k : r;
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t i = 0; i < k; ++i)
          sum += get(p.a, from * k + i) * get(p.b, e * n * k + (p.trans_b ? j * k + i : i * n + j));
        set(p.out, r * n + j, sum);
      }
    }
}

void grouped_gemm_grad(const GroupedGemmGrad& p, Stream) {
  const int64_t m = p.out.shape[1], n = p.out.shape[2];
  for (int64_t e = 0; e < p.out.shape[0]; ++e)
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        const int64_t at = (e * m + i) * n + j;
        double sum = p.accumulate ? get(p.out, at) : 0;
        for (int64_t r = id(p.offsets, e); r < id(p.offsets, e + 1); ++r) {
          const int64_t token = id(p.slots, r) / p.top_k;
          sum += get(p.a, (p.gather_a ? token : r) * m + i) * get(p.b, (p.gather_a ? r : token) * n + j);
        }
        set(p.out, at, sum);
      }
}

void expert_activate(const ExpertActivate& p, Stream) {
  activate({.x = p.x, .out = p.out, .kind = p.kind, .gated = p.gated}, {});
  const int64_t cols = p.out.shape.cols();
  for (int64_t i = 0; i < p.out.numel(); ++i) set(p.out, i, get(p.out, i) * get(p.weights, id(p.slots, i / cols)));
}

void expert_activate_grad(const ExpertActivateGrad& p, Stream) {
  const int64_t cols = p.dout.shape.cols();
  std::vector<double> value(static_cast<size_t>(p.dout.numel())), scaled(value.size());
  const auto tensor = [&](std::vector<double>& v) {
    return Tensor{reinterpret_cast<std::byte*>(v.data()), p.dout.shape, DType::kF64, {}};
  };
  activate({.x = p.x, .out = tensor(value), .kind = p.kind, .gated = p.gated}, {});
  for (int64_t r = 0; r < p.dout.shape.rows(); ++r) {
    double sum = 0;
    for (int64_t i = r * cols; i < (r + 1) * cols; ++i) {
      sum += value[static_cast<size_t>(i)] * get(p.dout, i);
      scaled[static_cast<size_t>(i)] = get(p.dout, i) * get(p.weights, id(p.slots, r));
    }
    set(p.dweights, id(p.slots, r), sum);
  }
  activate_grad({.x = p.x, .dout = tensor(scaled), .dx = p.dx, .kind = p.kind, .gated = p.gated}, {});
}

void combine_rows(const CombineRows& p, Stream) {
  const int64_t cols = p.out.shape.cols(), k = p.rows.numel() / p.out.shape.rows();
  for (int64_t i = 0; i < p.out.numel(); ++i) {
    double sum = p.accumulate ? get(p.out, i) : 0;
    for (int64_t j = 0; j < k; ++j) sum += get(p.x, id(p.rows, i / cols * k + j) * cols + i % cols);
    set(p.out, i, sum);
  }
}

}  // namespace gt::test::reference
