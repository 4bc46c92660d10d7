// The FP8 linear layer against plain sums in double over its dequantized operands. Every way of keeping its input,
// producing its FP8 data and running its backward is bitwise identical.
#include "parallel/tensor/fp8_linear.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/fp8.h"
#include "tests/autograd/tape_fixture.h"
#include "tests/support/test.h"

using namespace gt;
using namespace gt::rig;

namespace {

constexpr int64_t kRows = 32, kIn = 48, kOut = 16;

// Quantizes and dequantizes these values.
std::vector<double> through_codes(const std::vector<float>& x, DType codes) {
  const Fp8Format f = fp8_format(codes);
  float largest = 0;
  for (const float v : x) largest = std::max(largest, std::fabs(v));
  const float scale = fp8_scale(largest, f);
  std::vector<double> out;
  for (const float v : x) out.push_back(double{fp8_decode(fp8_encode(v * scale, f), f)} / scale);
  return out;
}

struct Results {
  std::vector<float> y, dx, dw, db;
  friend bool operator==(const Results&, const Results&) = default;
};

struct Layer {
  TapeFixture rig;
  Fp8Linear state{{"layer.input"}, {"layer.output_grad"}};
  Parameter w, b;
  Tensor x = rig.tensor({kRows, kIn}, 1), dy = rig.tensor({kRows, kOut}, 2, 1e-4f);

  Layer() {
    const auto make = [&](Parameter& p, Shape s, uint64_t seed) {
      p.full_shape = p.local_shape = s;
      p.value = rig.tensor(s, seed, 0.2f);
      p.grad = rig.tensor(s, seed + 1);  // not zero: the first writer overwrites
    };
    make(w, {kOut, kIn}, 3);
    make(b, {kOut}, 5);
    w.fp8_data = {rig.tensor(w.value.shape, 0, 1, DType::kF8E4M3), rig.tensor({kIn, kOut}, 0, 1, DType::kF8E4M3),
                  rig.tensor({1}, 0)};
    const Tensor largest = rig.tensor({1}, 0);
    rig.backend.ops->max_abs({.x = w.value, .out = largest}, rig.stream);
    rig.backend.ops->quantize_fp8({.x = w.value,
                                   .fp8 = {.amax = largest,
                                           .rowwise = w.fp8_data.rowwise,
                                           .columnwise = w.fp8_data.columnwise,
                                           .scale_inv = w.fp8_data.scale_inv}},
                                  rig.stream);
  }

  Results run(ops::Keep keep, bool split, int uses = 1) {
    Tape& t = rig.tape;
    w.grad_dirty = b.grad_dirty = false;
    Results out;
    for (int use = 0; use < uses; ++use) {
      const Var in = t.input(x, true), y = ops::fp8_linear(t, in, w, &b, state, keep);
      CHECK(rig.pool.live() == 0);
      t.seed(y, dy);
      out.y = values(y.value);
      t.backward(0, split ? Pass::kInput : Pass::kFull);
      if (split) t.run_deferred();
      out.dx = values(t.grad(in));
      t.reset();
      CHECK(rig.pool.live() == 0);
    }
    out.dw = values(w.grad);
    out.db = values(b.grad);
    return out;
  }
};

// sum_k a[i, k] b[j, k] for all i, j.
std::vector<double> matmul(const std::vector<double>& a, const std::vector<double>& b, int64_t k) {
  std::vector<double> out;
  for (size_t i = 0; i < a.size(); i += static_cast<size_t>(k))
    for (size_t j = 0; j < b.size(); j += static_cast<size_t>(k)) {
      double sum = 0;
      for (size_t x = 0; x < static_cast<size_t>(k); ++x) sum += a[i + x] * b[j + x];
      out.push_back(sum);
    }
  return out;
}

std::vector<double> transposed(const std::vector<double>& a, int64_t cols) {
  std::vector<double> out;
  for (size_t c = 0; c < static_cast<size_t>(cols); ++c)
    for (size_t i = c; i < a.size(); i += static_cast<size_t>(cols)) out.push_back(a[i]);
  return out;
}

void check_close(const char* what, const std::vector<float>& got, const std::vector<double>& expected) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(double{got[i]} - expected[i], 2);
    norm += expected[i] * expected[i];
  }
  INFO(what);
  REQUIRE(got.size() == expected.size());
  CHECK(std::sqrt(error) < 2e-6 * std::sqrt(norm));
  CHECK(norm > 0);
}

}  // namespace

TEST_CASE("an FP8 linear layer computes forward and both gradients from FP8 tensors, E5M2 for dL/dy") {
  Layer layer;
  const auto x = through_codes(values(layer.x), DType::kF8E4M3),
             w = through_codes(values(layer.w.value), DType::kF8E4M3),
             dy = through_codes(values(layer.dy), DType::kF8E5M2);
  const Results got = layer.run(ops::Keep::kFp8, false);
  auto y = matmul(x, w, kIn);
  for (size_t i = 0; i < y.size(); ++i) y[i] += double{layer.b.value.as<float>()[i % kOut]};
  check_close("y", got.y, y);
  check_close("dx", got.dx, matmul(dy, transposed(w, kIn), kOut));
  check_close("dw", got.dw, matmul(transposed(dy, kOut), transposed(x, kIn), kRows));
  std::vector<double> db(kOut);  // of dy unquantized
  for (int64_t i = 0; i < layer.dy.numel(); ++i) db[static_cast<size_t>(i % kOut)] += double{layer.dy.as<float>()[i]};
  check_close("db", got.db, db);
}

TEST_CASE("kept and recomputed FP8 tensors and deferred weight gradients are bitwise identical, gradients accumulate") {
  Layer layer;
  const Results codes = layer.run(ops::Keep::kFp8, false);
  CHECK(layer.run(ops::Keep::kInputs, false) == codes);
  CHECK(layer.run(ops::Keep::kFp8, true) == codes);
  CHECK(layer.run(ops::Keep::kInputs, true) == codes);
  Results twice = layer.run(ops::Keep::kFp8, false, 2);
  for (size_t i = 0; i < twice.dw.size(); ++i) CHECK(twice.dw[i] == 2 * codes.dw[i]);
  for (size_t i = 0; i < twice.db.size(); ++i) CHECK(twice.db[i] == Approx(2 * codes.db[i]));
}

TEST_CASE("an FP8 layer saves one byte per element for the backward, or none") {
  const auto kept = [](ops::Keep keep) {
    Layer layer;
    Tape& t = layer.rig.tape;
    const int64_t before = layer.rig.arena.used();
    ops::fp8_linear(t, t.input(layer.x, true), layer.w, &layer.b, layer.state, keep, ops::Output::kTransient);
    return layer.rig.arena.used() - before;
  };
  const int64_t factors = kAlign;
  CHECK(kept(ops::Keep::kFp8) == factors + align_up(kRows * kIn));
  CHECK(kept(ops::Keep::kInputs) == factors);
}

namespace {

constexpr int64_t kWide = 32;   // between the layers of the MLP
constexpr int64_t kMany = 176;  // rows: several blocks of the CPU's column sums, and a partial one

// A norm, a linear layer, an MLP and the norm behind it: the combinations in which producers write FP8 data.
struct Chain {
  TapeFixture rig;
  Fp8Linear first{{"first.input"}, {"first.output_grad"}}, up{{"up.input"}, {"up.output_grad"}},
      down{{"down.input"}, {"down.output_grad"}};
  Parameter gamma, beta, w, b, w_up, b_up, w_down, b_down, last_gamma, last_beta;
  RowDrop drop;  // on the MLP's output
  Tensor x = rig.tensor({kMany, kIn}, 1), dy = rig.tensor({kMany, kIn}, 2, 1e-4f);

  // has_history: delayed scaling with an amax other than the one that this step would measure.
  explicit Chain(bool has_history) {
    const auto make = [&](Parameter& p, Shape s, uint64_t seed, float std) {
      p.full_shape = p.local_shape = s;
      p.value = rig.tensor(s, seed, std);
      p.grad = rig.tensor(s, seed + 100);
      if (s.rank < 2) return;
      p.fp8_data = {rig.tensor(s, 0, 1, DType::kF8E4M3), rig.tensor({s[1], s[0]}, 0, 1, DType::kF8E4M3),
                    rig.tensor({1}, 0)};
      const Tensor largest = rig.tensor({1}, 0);
      rig.backend.ops->max_abs({.x = p.value, .out = largest}, rig.stream);
      rig.backend.ops->quantize_fp8({.x = p.value,
                                     .fp8 = {.amax = largest,
                                             .rowwise = p.fp8_data.rowwise,
                                             .columnwise = p.fp8_data.columnwise,
                                             .scale_inv = p.fp8_data.scale_inv}},
                                    rig.stream);
    };
    make(gamma, {kIn}, 3, 1), make(beta, {kIn}, 4, 0.3f);
    make(w, {kIn, kIn}, 5, 0.2f), make(b, {kIn}, 6, 0.2f);
    make(w_up, {kWide, kIn}, 7, 0.2f), make(b_up, {kWide}, 8, 0.2f);
    make(w_down, {kIn, kWide}, 9, 0.2f), make(b_down, {kIn}, 10, 0.2f);
    make(last_gamma, {kIn}, 11, 1), make(last_beta, {kIn}, 12, 0.3f);
    for (Fp8State* r : {&first.input, &first.output_grad, &up.input, &up.output_grad, &down.input, &down.output_grad}) {
      r->scale = {rig.tensor({1}, 0), rig.tensor({1}, 0), has_history};
      r->scale.amax.as<float>()[0] = r->name.ends_with("grad") ? 2e-4f : 1.7f;
      r->scale.step_amax.as<float>()[0] = 0;
    }
  }

  // A node that forwards its gradient: ops in front of it cannot access the requests behind it.
  Var hidden(const Var& x) {
    const Var y = rig.tape.view_of(x);
    struct Saved {
      Var x, y;
    };
    rig.tape.record(Saved{x, y}, [](const Saved& s, Backprop& bp) { bp.forward_grad(s.x, bp.grad(s.y)); });
    return y;
  }

  // All results, and the recorded amax values. fused: producers write FP8 data. uses: gradients accumulate.
  std::vector<std::vector<float>> run(bool fused, ops::Keep keep, bool split, int uses = 1) {
    for (Parameter* p : parameters()) p->grad_dirty = false;
    std::vector<std::vector<float>> out;
    for (int use = 0; use < uses; ++use) out = run_once(fused, keep, split);
    for (const Parameter* p : parameters()) out.push_back(values(p->grad));
    for (const Fp8Linear* l : {&first, &up, &down})
      for (const Fp8State* r : {&l->input, &l->output_grad}) out.push_back(values(r->scale.step_amax));
    return out;
  }

  std::vector<Parameter*> parameters() {
    return {&gamma, &beta, &w, &b, &w_up, &b_up, &w_down, &b_down, &last_gamma, &last_beta};
  }

  std::vector<std::vector<float>> run_once(bool fused, ops::Keep keep, bool split) {
    Tape& t = rig.tape;
    const Var in = t.input(x, true);
    const ops::Keep stored = fused ? keep : ops::Keep::kOutputs;
    const ops::Normed n =
        ops::add_norm(t, in, nullptr, {&gamma, &beta}, stored, {}, fused ? &first.input.scale : nullptr);
    const Var y = fused ? ops::fp8_linear(t, n.fp8_data, w, &b, first) : ops::fp8_linear(t, n.out, w, &b, first, keep);
    ops::discard(t, n, {&gamma, &beta}, stored);
    Var z;
    if (fused) {
      z = ops::fp8_mlp(t, ops::quantize(t, y, Fp8Source::kPlain, up.input, keep), {w_up, &b_up, up},
                       {w_down, &b_down, down}, keep);
    } else {
      const Var h = ops::gelu(t, ops::fp8_linear(t, y, w_up, &b_up, up, keep));
      z = ops::fp8_linear(t, h, w_down, &b_down, down, keep);
    }
    if (!fused) z = hidden(z);
    const ops::Normed last = ops::add_norm(t, n.sum, &z, {&last_gamma, &last_beta}, ops::Keep::kOutputs, drop);
    CHECK(rig.pool.live() == 0);
    std::vector<std::vector<float>> out{values(last.out.value)};
    t.seed(last.out, dy);
    t.backward(0, split ? Pass::kInput : Pass::kFull);
    if (split) t.run_deferred();
    out.push_back(values(t.grad(in)));
    t.reset();
    CHECK(rig.pool.live() == 0);
    return out;
  }
};

}  // namespace

TEST_CASE("FP8 outputs of norms and GELUs are bitwise those of stored results: kept, recomputed and deferred") {
  for (const bool has_history : {false, true})
    for (const bool drops : {false, true})
      for (const int uses : {1, 2}) {
        const auto run = [&](bool fused, ops::Keep keep, bool split) {
          Chain c(has_history);
          if (drops) c.drop = {.mask = {.key = 11, .threshold = 1u << 30, .scale = 4.f / 3}, .rows = {.seq = kMany}};
          return c.run(fused, keep, split, uses);
        };
        const auto plain = run(false, ops::Keep::kFp8, false);
        for (size_t i = plain.size() - 6; i < plain.size(); ++i) CHECK(plain[i][0] > 0);  // recorded amax
        for (const ops::Keep keep : {ops::Keep::kFp8, ops::Keep::kInputs})
          for (const bool split : {false, true}) {
            INFO((has_history ? "delayed" : "current")
                 << (keep == ops::Keep::kInputs ? ", made again" : "") << (split ? ", deferred" : "")
                 << (drops ? ", dropout" : "") << ", " << uses << " microbatches");
            CHECK((run(true, keep, split) == plain));
            CHECK((run(false, keep, split) == plain));
          }
      }
}

TEST_CASE("a gradient that is already quantized or has its amax is not accumulated into") {
  for (const bool has_history : {false, true}) {
    Chain c(has_history);
    Tape& t = c.rig.tape;
    const Var in = t.input(c.x, true), y = ops::fp8_linear(t, in, c.w, &c.b, c.first, ops::Keep::kFp8);
    const Var other = ops::gelu(t, y);  // its rule runs after the norm's
    const ops::Normed n = ops::add_norm(t, in, &y, {&c.gamma, &c.beta});
    t.seed(other, c.dy);
    t.seed(n.out, c.dy);
    CHECK_THROWS_WITH(t.backward(), Catch::Contains("is already quantized to FP8"));
    t.reset();
  }
}

TEST_CASE("a norm with delayed scaling stores FP8 data instead of its result and records its amax") {
  Chain c(true);
  Tape& t = c.rig.tape;
  const int64_t before = c.rig.arena.used();
  const ops::Normed n =
      ops::add_norm(t, t.input(c.x, true), nullptr, {&c.gamma, &c.beta}, ops::Keep::kFp8, {}, &c.first.input.scale);
  CHECK(!n.out.value);
  // rowwise data, until the GEMM has read them
  CHECK(c.rig.pool.live() == 1);
  // Mean and rstd, scale_inv and amax, columnwise data.
  CHECK(c.rig.arena.used() - before == 2 * align_up(4 * kMany) + kAlign + align_up(kMany * kIn));
  const float step_amax = c.first.input.scale.step_amax.as<float>()[0],
              scale_inv = n.fp8_data.scale_inv().as<float>()[0];
  CHECK(step_amax > 1.7f);
  CHECK(scale_inv == 1 / fp8_scale(1.7f, fp8_format(DType::kF8E4M3)));
  t.discard(n.fp8_data.rowwise);
  t.reset();
}
