// Muon (Jordan et al. 2024): the momentum of a weight matrix, orthogonalized by Newton-Schulz iterations. Scale of the
// update: `original`, sqrt(max(1, rows / cols)) (Jordan et al.), or `adamw`, 0.2 sqrt(max(rows, cols)), which gives
// updates the RMS of AdamW's, so that both share a learning rate and decay (Liu et al. 2025, arXiv 2502.16982). Decay
// is decoupled. The elementwise parts run as SGD: an exponential average m += (1 - b) (g - m) is a step of rate b - 1
// with weight decay -1.
#include <algorithm>
#include <cmath>
#include <string_view>

#include "optim/families.h"
#include "optim/optimizer_rules.h"
#include "optim/param_group.h"
#include "optim/updates.h"
#include "optim/whole_matrices.h"

namespace gt {
namespace {

constexpr float kEps = 1e-7f;  // added to the Frobenius norm

// One iteration maps every singular value x to a x + b x^3 + c x^5.
struct Polynomial {
  float a, b, c;
};

// Polynomials of the first iterations; the following ones repeat them from the start, or the last one.
struct Coefficients {
  bool repeats_last;
  std::vector<Polynomial> list;
};

const Coefficients& coefficients_of(MuonCoefficients name) {
  static const std::vector<Coefficients> kAll = {
      {false, {{3.4445f, -4.775f, 2.0315f}}},  // Jordan et al. 2024
                                               // modded-nanogpt; Megatron-LM's default.
      {false,
       {{4.0848f, -6.8946f, 2.927f},
        {3.9505f, -6.3029f, 2.6377f},
        {3.7418f, -5.5913f, 2.3037f},
        {2.8769f, -3.1427f, 1.2046f},
        {2.8366f, -3.0525f, 1.2012f}}},
      // Amsel et al. 2025 (arXiv 2505.16932), with their safety factor 1.01,
      // rounded as in NVIDIA's Emerging-Optimizers.
      {true,
       {{8.2051f, -22.9019f, 16.4607f},
        {4.0664f, -2.8612f, 0.5184f},
        {3.9096f, -2.8234f, 0.525f},
        {3.2856f, -2.4153f, 0.4853f},
        {2.2779f, -1.6198f, 0.3985f},
        {1.8726f, -1.2307f, 0.3585f},
        {1.8564f, -1.2132f, 0.3568f},
        {1.875f, -1.25f, 0.375f}}}};
  return kAll[static_cast<size_t>(name)];
}

std::vector<Polynomial> polynomials(const OptimizerOptions& o) {
  const Coefficients& c = coefficients_of(o.muon_coefficients);
  std::vector<Polynomial> out;
  for (size_t k = 0; k < static_cast<size_t>(o.muon_iterations); ++k)
    out.push_back(c.list[c.repeats_last ? std::min(k, c.list.size() - 1) : k % c.list.size()]);
  return out;
}

// Replaces matrices by the nearest semi-orthogonal ones, approximately: with 5 iterations of `simple`, singular values
// between 0.7 and 1.2.
class NewtonSchulz {
 public:
  NewtonSchulz(const OptimizerOptions& o, const WholeMatrices& all, const Backend& backend, Stream stream)
      : type_(o.muon_gemms),
        iterations_(polynomials(o)),
        original_(o.muon_scale == MuonScale::kOriginal),
        all_(all),
        ops_(*backend.ops),
        squares_(size_of(DType::kF64), stream.device, *backend.device) {
    int64_t elements = 0, side = 0;
    for (int i = 0; i < all.count(); ++i) {
      const WholeMatrix& w = all.matrix(i);
      elements = std::max(elements, w.rows * w.cols);
      side = std::max(side, tall(w) ? w.cols : w.rows);
      squared_.open(DType::kF32, DType::kF32, DType::kF32);
      squared_.add({.grad = w.data.data, .count = w.rows * w.cols});
    }
    for (Buffer& b : x_) b = Buffer(elements * size_of(type_), stream.device, *backend.device);
    for (Buffer& b : gram_) b = Buffer(side * side * size_of(type_), stream.device, *backend.device);
    squared_.upload(all.count(), stream, *backend.device);
  }

  void operator()(int index, Stream stream) const {
    const WholeMatrix& w = all_.matrix(index);
    const Tensor squares = squares_.tensor({1}, DType::kF64);
    Tensor x = x_[0].tensor({w.rows * w.cols}, type_), y = x_[1].tensor({w.rows * w.cols}, type_);
    ops_.sum_squares({.table = squared_.tables()[static_cast<size_t>(index)], .out = squares}, stream);
    ops_.normalize({.x = w.data, .squares = squares, .out = x, .eps = kEps}, stream);
    for (const Polynomial& p : iterations_) {
      iterate(p, w, x, y, stream);
      std::swap(x, y);
    }
    ops_.cast({.src = x, .dst = w.data}, stream);
    const auto rows = static_cast<double>(w.rows), cols = static_cast<double>(w.cols);
    const double scale = original_ ? std::sqrt(std::max(1., rows / cols)) : 0.2 * std::sqrt(std::max(rows, cols));
    ops_.scale({.x = w.data, .out = w.data, .factor = static_cast<float>(scale)}, stream);
  }

  int64_t bytes() const {
    return x_[0].bytes() + x_[1].bytes() + gram_[0].bytes() + gram_[1].bytes() + squares_.bytes() + squared_.bytes();
  }

 private:
  // Whether the Gram matrix is X^T X, the smaller one. In blocks of columns it is X X^T.
  static bool tall(const WholeMatrix& w) { return w.blocks == 1 && w.rows > w.cols; }

  // y = a x + (b G + c G^2) x with G = x x^T, or from the right with x^T x.
  void iterate(const Polynomial& p, const WholeMatrix& w, Tensor x, Tensor y, Stream stream) const {
    const int64_t side = tall(w) ? w.cols : w.rows;
    const Tensor g = gram_[0].tensor({side, side}, type_), g2 = gram_[1].tensor({side, side}, type_);
    for (int k = 0; k < w.blocks; ++k) {
      const Tensor part = w.block(x, k);
      ops_.gemm({.a = part, .b = part, .out = g, .trans_a = tall(w), .trans_b = !tall(w), .accumulate = k > 0}, stream);
    }
    ops_.gemm({.a = g, .b = g, .out = g2}, stream);
    ops_.scale({.x = g, .out = g, .factor = p.b}, stream);
    ops_.axpy({.x = g2, .y = g, .alpha = p.c}, stream);
    ops_.scale({.x = x, .out = y, .factor = p.a}, stream);
    for (int k = 0; k < w.blocks; ++k) {
      const Tensor part = w.block(x, k);
      ops_.gemm({.a = tall(w) ? part : g, .b = tall(w) ? g : part, .out = w.block(y, k), .accumulate = true}, stream);
    }
  }

  DType type_;
  std::vector<Polynomial> iterations_;
  bool original_;
  const WholeMatrices& all_;
  const OpTable& ops_;
  Buffer x_[2], gram_[2], squares_;
  SegmentTables squared_;  // one table per matrix
};

class Muon : public Optimizer {
 public:
  Muon(const OptimizerOptions& o, const ParamStore& store, const Mesh& mesh, const Backend& backend, Stream stream)
      : options_(o),
        ops_(*backend.ops),
        momentum_(optimizer_rule(o.type).moments.front(), store, backend, stream, o.tensors),
        whole_(store, o.tensors, mesh, backend, stream),
        newton_schulz_(o, whole_, backend, stream),
        updates_(o, store, {}, mesh, backend, stream, {.by_tensor = true, .elements = 1, .gradients = &whole_}),
        group_of_(groups_of_tensors(o.groups, store)) {
    for (const TensorRangePart& p : store.pieces()) {
      if (!o.tensors[static_cast<size_t>(p.tensor)]) continue;
      const TensorRange& r = store.ranges()[static_cast<size_t>(p.range)];
      parts_.push_back({p.tensor, momentum_.of(r, p.at, p.count), whole_.of(r, p.at, p.count)});
      for (const Tensor& average : {parts_.back().momentum, parts_.back().update}) {
        averages_.open(DType::kF32, r.grad.dtype, DType::kF32);
        averages_.add(
            {.master = average.data, .grad = r.grad.slice(p.at, p.count).data, .count = p.count, .weight_decay = -1});
      }
    }
    const auto tensors = static_cast<int64_t>(store.tensors().size());
    averages_.upload(4 * (tensors + store.num_shards()), stream, *backend.device);  // as UpdateTables::most_segments
  }

  void step(Tensor scalars, Stream stream) override {
    const int64_t rows = options_.group_rows();
    const Tensor steps = scalars.slice(rows * kNumScalars, rows * kNumScalars);
    updates_.share_verdict(scalars, stream);
    for (int64_t k = 0; k < rows; ++k)
      ops_.copy({.src = scalars.slice(kSkip, 1), .dst = steps.slice(k * kNumScalars + kSkip, 1)}, stream);
    for (const WholeMatrices::Unit& u : whole_.units()) {
      for (size_t k = 0; k < parts_.size(); ++k)
        if (parts_[k].tensor >= u.first_tensor && parts_[k].tensor < u.last_tensor) average(k, scalars, stream);
      whole_.each(u, stream, [&](int matrix) { newton_schulz_(matrix, stream); });
      updates_.each_of(u.first_tensor, u.last_tensor, steps, stream,
                       [&](const SegmentTable& t, Tensor row) { ops_.sgd({.table = t, .scalars = row}, stream); });
    }
  }

  std::vector<ShardView> state_views(const ParamStore& store) const override {
    std::vector<ShardView> out;
    momentum_.append_views(store, out);
    return out;
  }

  int64_t state_bytes() const override { return momentum_.bytes(); }
  int64_t work_bytes() const override {
    return updates_.bytes() + whole_.bytes() + newton_schulz_.bytes() + averages_.bytes();
  }

  // Rows of the momentum, then of the step, whose gradient is not clipped again.
  void fill_scalars(int64_t t, const LrPoint& p, float* scalars) const override {
    fill_rows(options_, scalars, [&](const ParamGroup& g, float* s) {
      const float b = p.beta1 != kKeepBeta ? static_cast<float>(p.beta1) : g.betas ? (*g.betas)[0] : options_.momentum;
      s[kLr] = b - 1;
    });
    fill_rows(options_, scalars + options_.group_rows() * kNumScalars, [&](const ParamGroup& g, float* s) {
      s[kLr] = static_cast<float>(p.lr * g.lr_scale * options_.muon_lr_scale);
      s[kGradMultiplier] = 1;
      fill_step_number(t, s);
    });
  }

 private:
  struct Part {
    int tensor;
    Tensor momentum, update;
  };

  // m += (1 - b) (g - m); update = m, with Nesterov averaged with the gradient once more.
  void average(size_t k, Tensor scalars, Stream stream) const {
    const Part& p = parts_[k];
    const Tensor row = scalars.slice(group_of_[static_cast<size_t>(p.tensor)] * kNumScalars, kNumScalars);
    ops_.sgd({.table = averages_.tables()[2 * k], .scalars = row}, stream);
    ops_.copy({.src = p.momentum, .dst = p.update}, stream);
    if (options_.nesterov) ops_.sgd({.table = averages_.tables()[2 * k + 1], .scalars = row}, stream);
  }

  OptimizerOptions options_;
  const OpTable& ops_;
  FlatState momentum_;
  WholeMatrices whole_;
  NewtonSchulz newton_schulz_;
  UpdateTables updates_;
  std::vector<int> group_of_;
  std::vector<Part> parts_;
  SegmentTables averages_;  // of each part two tables: momentum, update
};

}  // namespace

std::unique_ptr<Optimizer> make_muon(const OptimizerOptions& o, const ParamStore& store, const Mesh& mesh,
                                     const Backend& backend, Stream stream) {
  return std::make_unique<Muon>(o, store, mesh, backend, stream);
}

}  // namespace gt
