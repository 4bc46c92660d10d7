// The linear layer of 8 bits against plain sums in double over what its codes say; every way of keeping its input and
// of running its backward gives the same bits.
#include "parallel/tensor/fp8_linear.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/fp8.h"
#include "tests/autograd/tape_rig.h"
#include "tests/support/test.h"

using namespace gt;
using namespace gt::rig;

namespace {

constexpr int64_t kRows = 32, kIn = 48, kOut = 16;

// What codes of these numbers say.
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
  Rig rig;
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
    w.codes = {rig.tensor(w.value.shape, 0, 1, DType::kF8E4M3), rig.tensor({kIn, kOut}, 0, 1, DType::kF8E4M3),
               rig.tensor({1}, 0)};
    const Tensor largest = rig.tensor({1}, 0);
    rig.backend.ops->max_abs({.x = w.value, .out = largest}, rig.stream);
    rig.backend.ops->quantize_fp8(
        {.x = w.value, .amax = largest, .rows = w.codes.rows, .columns = w.codes.columns, .inverse = w.codes.inverse},
        rig.stream);
  }

  // The input is a copy that is given back once the layer has run, and with kInputs made again.
  Results run(ops::Keep keep, bool split, int uses = 1) {
    Tape& t = rig.tape;
    w.grad_dirty = b.grad_dirty = false;
    Results out;
    for (int use = 0; use < uses; ++use) {
      const Var in = t.input(x, true);
      const Var copy = ops::gelu(t, in, ops::Output::kTransient);
      const Var y = ops::fp8_linear(t, copy, w, &b, state, keep);
      if (keep == ops::Keep::kInputs)
        ops::discard_gelu(t, in, copy);
      else
        t.discard(copy);
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
  std::vector<float> input() {
    const Tensor h = rig.tensor(x.shape, 0);
    rig.backend.ops->gelu({.x = x, .out = h}, rig.stream);
    return values(h);
  }
};

// sum_k a[i, k] b[j, k] for all i, j.
std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b, int64_t k) {
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

void check_close(const char* what, const std::vector<float>& got, const std::vector<double>& want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += std::pow(double{got[i]} - want[i], 2);
    norm += want[i] * want[i];
  }
  INFO(what);
  REQUIRE(got.size() == want.size());
  CHECK(std::sqrt(error) < 2e-6 * std::sqrt(norm));
  CHECK(norm > 0);
}

}  // namespace

TEST_CASE("a linear layer of 8 bits computes forward and both gradients from codes, f8e5m2 of what comes back") {
  Layer layer;
  const auto x = through_codes(layer.input(), DType::kF8E4M3), w = through_codes(values(layer.w.value), DType::kF8E4M3),
             dy = through_codes(values(layer.dy), DType::kF8E5M2);
  const Results got = layer.run(ops::Keep::kCodes, false);
  auto y = product(x, w, kIn);
  for (size_t i = 0; i < y.size(); ++i) y[i] += double{layer.b.value.as<float>()[i % kOut]};
  check_close("y", got.y, y);
  auto dx = product(dy, transposed(w, kIn), kOut);
  const Tensor slope = layer.rig.tensor(layer.x.shape, 0), ones = layer.rig.tensor(layer.x.shape, 0);
  std::fill_n(ones.as<float>(), ones.numel(), 1.f);
  layer.rig.backend.ops->gelu_grad({.x = layer.x, .dout = ones, .dx = slope}, layer.rig.stream);
  for (size_t i = 0; i < dx.size(); ++i) dx[i] *= double{slope.as<float>()[i]};
  check_close("dx", got.dx, dx);
  check_close("dw", got.dw, product(transposed(dy, kOut), transposed(x, kIn), kRows));
  std::vector<double> db(kOut);  // of dy as it came
  for (int64_t i = 0; i < layer.dy.numel(); ++i) db[static_cast<size_t>(i % kOut)] += double{layer.dy.as<float>()[i]};
  check_close("db", got.db, db);
}

TEST_CASE("keeping codes, making them again and deferred weight gradients give the same bits; gradients add up") {
  Layer layer;
  const Results codes = layer.run(ops::Keep::kCodes, false);
  CHECK(layer.run(ops::Keep::kInputs, false) == codes);
  CHECK(layer.run(ops::Keep::kCodes, true) == codes);
  CHECK(layer.run(ops::Keep::kInputs, true) == codes);
  Results twice = layer.run(ops::Keep::kCodes, false, 2);
  for (size_t i = 0; i < twice.dw.size(); ++i) CHECK(twice.dw[i] == 2 * codes.dw[i]);
  for (size_t i = 0; i < twice.db.size(); ++i) CHECK(twice.db[i] == Approx(2 * codes.db[i]));
}

TEST_CASE("what a layer of 8 bits keeps for the backward are one byte an element, or none") {
  const auto kept = [](ops::Keep keep) {
    Layer layer;
    Tape& t = layer.rig.tape;
    const int64_t before = layer.rig.arena.used();
    ops::fp8_linear(t, t.input(layer.x, true), layer.w, &layer.b, layer.state, keep, ops::Output::kTransient);
    return layer.rig.arena.used() - before;
  };
  const int64_t factors = kAlign;
  CHECK(kept(ops::Keep::kCodes) == factors + align_up(kRows * kIn));
  CHECK(kept(ops::Keep::kInputs) == factors);
}
