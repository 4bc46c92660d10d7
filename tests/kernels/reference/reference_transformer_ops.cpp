// Reference ops of MLP activations, rotary embedding and QK norm.
#include <cmath>

#include "tests/kernels/reference/reference_ops.h"

namespace gt::test::reference {
namespace {

struct Activated {
  double value, slope;
};
Activated activated(Activation kind, double x) {
  if (kind == Activation::kGelu) return {gelu_value(x), gelu_slope(x)};
  if (kind == Activation::kRelu2) return {x > 0 ? x * x : 0, x > 0 ? 2 * x : 0};
  if (kind == Activation::kTanh) return {std::tanh(x), 1 - std::tanh(x) * std::tanh(x)};
  if (kind == Activation::kGeluErf) {
    const double share = std::erfc(-x / std::sqrt(2.)) / 2;
    return {x * share, share + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI)};
  }
  const double s = 1 / (1 + std::exp(-x));
  return {x * s, s + x * s * (1 - s)};
}

// Calls head(h, gamma, dgamma or nullptr, first element) for every normalized head of row r.
template <class Args, class F>
void each_normed(const Args& p, int64_t r, F head) {
  for (int64_t h = 0; h < p.heads + p.kv_heads; ++h)
    head(h, h < p.heads ? p.q_gamma : p.k_gamma, (r * (p.heads + 2 * p.kv_heads) + h) * p.head_dim);
}

}  // namespace

void activate(const Activate& p, Stream) {
  const int64_t cols = p.out.shape.cols();
  for (int64_t i = 0; i < p.out.numel(); ++i) {
    const int64_t at = p.gated ? i / cols * 2 * cols + i % cols : i;
    set(p.out, i, activated(p.kind, get(p.x, at)).value * (p.gated ? get(p.x, at + cols) : 1));
  }
}

void activate_grad(const ActivateGrad& p, Stream) {
  const int64_t cols = p.dout.shape.cols();
  for (int64_t i = 0; i < p.dout.numel(); ++i) {
    const int64_t at = p.gated ? i / cols * 2 * cols + i % cols : i;
    const Activated a = activated(p.kind, get(p.x, at));
    const double up = p.gated ? get(p.x, at + cols) : 1, d = get(p.dout, i);
    set(p.dx, at, d * up * a.slope);
    if (p.gated) set(p.dx, at + cols, d * a.value);
  }
}

void qk_norm(const QkNorm& p, Stream) {
  for (int64_t r = 0; r < p.qkv.shape.rows(); ++r) {
    each_normed(p, r, [&](int64_t h, const Tensor& gamma, int64_t at) {
      double mean = 0;
      for (int64_t j = 0; j < p.head_dim; ++j)
        mean += std::pow(get(p.qkv, at + j), 2) / static_cast<double>(p.head_dim);
      const double rstd = 1 / std::sqrt(mean + p.eps);
      for (int64_t j = 0; j < p.head_dim; ++j)
        set(p.out, at + j, get(p.qkv, at + j) * rstd * (p.gamma_offset + get(gamma, j)));
      set(p.rstd, r * (p.heads + p.kv_heads) + h, rstd);
    });
    const int64_t cols = p.qkv.shape.cols();
    for (int64_t i = r * cols + (p.heads + p.kv_heads) * p.head_dim; i < (r + 1) * cols; ++i)
      set(p.out, i, get(p.qkv, i));
  }
}

void qk_norm_grad(const QkNormGrad& p, Stream) {
  const int64_t rows = p.qkv.shape.rows(), cols = p.qkv.shape.cols(), dim = p.head_dim;
  const auto rstd_of = [&](int64_t r, int64_t h) { return get(p.rstd, r * (p.heads + p.kv_heads) + h); };
  for (int64_t j = 0; p.dq_gamma && j < dim; ++j) {
    double dq = p.accumulate_dw ? get(p.dq_gamma, j) : 0, dk = p.accumulate_dw ? get(p.dk_gamma, j) : 0;
    for (int64_t r = 0; r < rows; ++r)
      each_normed(p, r, [&](int64_t h, const Tensor&, int64_t at) {
        (h < p.heads ? dq : dk) += get(p.dout, at + j) * get(p.qkv, at + j) * rstd_of(r, h);
      });
    set(p.dq_gamma, j, dq);
    set(p.dk_gamma, j, dk);
  }
  for (int64_t r = 0; p.dqkv && r < rows; ++r) {
    each_normed(p, r, [&](int64_t h, const Tensor& gamma, int64_t at) {
      const double rstd = rstd_of(r, h);
      const auto g = [&](int64_t j) { return get(p.dout, at + j) * (p.gamma_offset + get(gamma, j)); };
      double average = 0;
      for (int64_t j = 0; j < dim; ++j) average += g(j) * get(p.qkv, at + j) * rstd / static_cast<double>(dim);
      for (int64_t j = 0; j < dim; ++j) set(p.dqkv, at + j, rstd * (g(j) - get(p.qkv, at + j) * rstd * average));
    });
    for (int64_t i = r * cols + (p.heads + p.kv_heads) * dim; i < (r + 1) * cols; ++i) set(p.dqkv, i, get(p.dout, i));
  }
}

namespace {
// Calls section(which, first column, channels, share of each in the mean): 0 for queries, 1 for keys.
template <class Args, class F>
void each_section(const Args& p, int64_t ranks, F section) {
  const int64_t q = p.heads * p.head_dim, k = p.kv_heads * p.head_dim;
  section(0, int64_t{0}, q, 1 / static_cast<double>(ranks * q));
  section(1, q, k, 1 / static_cast<double>(ranks * k));
}
}  // namespace

void qk_row_sums(const QkRowSums& p, Stream) {
  for (int64_t r = 0; r < p.qkv.shape.rows(); ++r)
    each_section(p, 1, [&](int which, int64_t first, int64_t channels, double) {
      double sum = 0;
      for (int64_t c = first; c < first + channels; ++c) {
        const int64_t at = r * p.qkv.shape.cols() + c;
        sum += get(p.qkv, at) * (p.dout ? get(p.dout, at) * get(p.gamma, c) : get(p.qkv, at));
      }
      set(p.sums, 2 * r + which, sum);
    });
}

void qk_row_norm(const QkRowNorm& p, Stream) {
  const int64_t cols = p.qkv.shape.cols();
  for (int64_t r = 0; r < p.qkv.shape.rows(); ++r) {
    each_section(p, p.ranks, [&](int which, int64_t first, int64_t channels, double share) {
      const double rstd = 1 / std::sqrt(get(p.sums, 2 * r + which) * share + p.eps);
      for (int64_t c = first; c < first + channels; ++c)
        set(p.out, r * cols + c, get(p.qkv, r * cols + c) * rstd * get(p.gamma, c));
    });
    for (int64_t i = r * cols + (p.heads + p.kv_heads) * p.head_dim; i < (r + 1) * cols; ++i)
      set(p.out, i, get(p.qkv, i));
  }
}

void qk_row_norm_grad(const QkRowNormGrad& p, Stream) {
  const int64_t rows = p.qkv.shape.rows(), cols = p.qkv.shape.cols();
  each_section(p, p.ranks, [&](int which, int64_t first, int64_t channels, double share) {
    const auto rstd = [&](int64_t r) { return 1 / std::sqrt(get(p.sums, 2 * r + which) * share + p.eps); };
    for (int64_t c = first; p.dgamma && c < first + channels; ++c) {
      double d = p.accumulate_dw ? get(p.dgamma, c) : 0;
      for (int64_t r = 0; r < rows; ++r) d += get(p.dout, r * cols + c) * get(p.qkv, r * cols + c) * rstd(r);
      set(p.dgamma, c, d);
    }
    for (int64_t r = 0; p.dqkv && r < rows; ++r)
      for (int64_t c = first; c < first + channels; ++c) {
        const int64_t at = r * cols + c;
        const double mean = get(p.dsums, 2 * r + which) * share;
        set(p.dqkv, at, rstd(r) * (get(p.dout, at) * get(p.gamma, c) - get(p.qkv, at) * rstd(r) * rstd(r) * mean));
      }
  });
  for (int64_t r = 0; p.dqkv && r < rows; ++r)
    for (int64_t i = r * cols + (p.heads + p.kv_heads) * p.head_dim; i < (r + 1) * cols; ++i)
      set(p.dqkv, i, get(p.dout, i));
}

void rope(const Rope& p, Stream) {
  const int64_t cols = p.x.shape.cols(), dim = p.table.shape.cols();
  for (int64_t r = 0; r < p.x.shape.rows(); ++r) {
    const int64_t position = p.positions ? static_cast<int64_t>(get(p.positions, r))
                                         : position_of_row(p.rows, (p.rows.first_row + r) % p.rows.seq);
    for (int64_t h = 0; h < p.heads; ++h)
      for (int64_t i = 0; i < dim / 2; ++i) {
        const int64_t at = r * cols + h * p.head_dim + i;
        const double cosine = get(p.table, position * dim + i), a = get(p.x, at), b = get(p.x, at + dim / 2);
        const double sine = get(p.table, position * dim + dim / 2 + i) * (p.backward ? -1 : 1);
        set(p.x, at, a * cosine - b * sine);
        set(p.x, at + dim / 2, b * cosine + a * sine);
      }
  }
}

}  // namespace gt::test::reference
