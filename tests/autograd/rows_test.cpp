// Ops on a slice of a microbatch's rows, and values consumed by the next op.
#include <algorithm>

#include "kernels/cpu/simd/simd.h"
#include "tests/autograd/tape_fixture.h"
#include "tests/support/test.h"

using namespace gt;
using namespace gt::rig;

TEST_CASE("positions of any row range and their gradients equal those of the whole tensor") {
  constexpr int64_t seq = 5, batch = 4, cols = 6, n = batch * seq, positions = 7;
  TapeFixture rig;
  Tape& t = rig.tape;
  Parameter table;
  table.full_shape = table.local_shape = {positions, cols};
  table.value = rig.tensor({positions, cols}, 1);
  const Tensor x = rig.tensor({n, cols}, 2), dy = rig.tensor({n, cols}, 3), grad = rig.tensor({positions, cols}, 4);
  table.grad = grad;
  const auto run = [&](int64_t first, int64_t rows, std::vector<float>& y) {
    const Tensor part = t.scratch({rows, cols}, DType::kF32);
    t.ops().copy({.src = x.slice(first, rows), .dst = part}, {});
    const Var out = ops::add_position(t, t.input(part, true), table, {.seq = seq, .first_row = first});
    y.insert(y.end(), out.value.as<float>(), out.value.as<float>() + rows * cols);
    t.seed(out, dy.slice(first, rows));
    t.backward();
    t.reset();
  };
  const auto gradient = [&] { return std::vector<float>(grad.as<float>(), grad.as<float>() + grad.numel()); };
  std::vector<float> whole;
  table.grad_dirty = false;
  run(0, n, whole);
  const std::vector<float> dwhole = gradient();
  for (int64_t i = 0; i < n * cols; ++i)
    CHECK(whole[static_cast<size_t>(i)] ==
          x.as<float>()[i] + table.value.as<float>()[i / cols % seq * cols + i % cols]);
  for (int64_t i = seq * cols; i < positions * cols; ++i) CHECK(dwhole[static_cast<size_t>(i)] == 0);
  for (int64_t rows : {1, 2, 3, 4, 5, 7, 10, 13, 19}) {
    INFO(rows << " rows at a time");
    std::vector<float> pieces;
    table.grad_dirty = false;
    for (int64_t at = 0; at < n; at += rows) run(at, std::min(rows, n - at), pieces);
    CHECK(pieces == whole);
    const std::vector<float> d = gradient();
    for (size_t i = 0; i < d.size(); ++i) CHECK(d[i] == Approx(dwhole[i]).epsilon(1e-6).margin(1e-6));
  }
}

TEST_CASE("positions of packed documents are rows of the table, and their gradients are sums over documents") {
  constexpr int64_t seq = 5, batch = 2, cols = 6, n = batch * seq, positions = 7;
  TapeFixture rig;
  Tape& t = rig.tape;
  Parameter table;
  table.full_shape = table.local_shape = {positions, cols};
  table.value = rig.tensor({positions, cols}, 1);
  const Tensor x = rig.tensor({n, cols}, 2), dy = rig.tensor({n, cols}, 3), grad = rig.tensor({positions, cols}, 4);
  table.grad = grad;
  std::vector<int32_t> at{0, 1, 2, 0, 1, 0, 0, 1, 2, 3};
  const MicroBatch mb{.positions = {reinterpret_cast<std::byte*>(at.data()), {batch, seq}, DType::kI32, {}},
                      .batch = batch,
                      .seq = seq};
  for (const int64_t cut : {n, int64_t{4}}) {  // whole, and as the rows of two ranks
    std::vector<float> y, sums(positions * cols), before(x.as<float>(), x.as<float>() + n * cols);
    table.grad_dirty = false;
    for (int64_t first = 0, rows = cut; first < n; first += rows, rows = n - first) {
      const Tensor part = t.scratch({rows, cols}, DType::kF32);
      t.ops().copy({.src = x.slice(first, rows), .dst = part}, {});
      const Var out = ops::add_position(t, t.input(part, true), table, mb.rows(first), mb.documents());
      y.insert(y.end(), out.value.as<float>(), out.value.as<float>() + rows * cols);
      t.seed(out, dy.slice(first, rows));
      t.backward();
      t.reset();
    }
    for (int64_t i = 0; i < n * cols; ++i) {
      const int64_t row = at[static_cast<size_t>(i / cols)] * cols + i % cols;
      CHECK(y[static_cast<size_t>(i)] == before[static_cast<size_t>(i)] + table.value.as<float>()[row]);
      sums[static_cast<size_t>(row)] += dy.as<float>()[i];
    }
    for (size_t i = 0; i < sums.size(); ++i) CHECK(grad.as<float>()[i] == Approx(sums[i]).epsilon(1e-6).margin(1e-6));
  }
}

TEST_CASE("a discarded transient value takes no memory, with and without recording") {
  TapeFixture rig;
  Tape& t = rig.tape;
  for (bool recording : {true, false}) {
    t.set_recording(recording);
    const int64_t before = t.activations().used();
    const Var a = t.transient({8, 8}, DType::kF32);
    CHECK((a.id >= 0) == recording);
    CHECK(rig.pool.live() == 1);
    CHECK(t.activations().used() == before);
    t.discard(a);
    CHECK(rig.pool.live() == 0);
    const Var left = t.transient({8, 8}, DType::kF32);
    CHECK(left.value.data == a.value.data);
    t.reset();
    CHECK(rig.pool.live() == 0);
  }
}

TEST_CASE("a linear layer's transient output leaves its gradients bitwise identical") {
  constexpr int64_t n = 6, in = 5, out = 4;
  TapeFixture rig;
  Tape& t = rig.tape;
  Parameter w;
  w.full_shape = w.local_shape = {out, in};
  w.value = rig.tensor({out, in}, 1);
  const Tensor x = rig.tensor({n, in}, 2), dy = rig.tensor({n, out}, 3);
  std::vector<std::vector<float>> results;
  for (const ops::Output where : {ops::Output::kKept, ops::Output::kTransient}) {
    w.grad = rig.tensor({out, in}, 4);
    w.grad_dirty = false;
    const Var v = t.input(x, true), y = ops::linear(t, v, w, nullptr, where);
    std::vector<float> r(y.value.as<float>(), y.value.as<float>() + n * out);
    t.discard(y);
    t.seed(y, dy);
    t.backward();
    r.insert(r.end(), t.grad(v).as<float>(), t.grad(v).as<float>() + n * in);
    r.insert(r.end(), w.grad.as<float>(), w.grad.as<float>() + out * in);
    results.push_back(r);
    t.reset();
  }
  CHECK(results[0] == results[1]);
}

TEST_CASE("a new write to a gradient drops the sum of its squares, which a product by tiles records") {
  constexpr int64_t n = 6, in = 16, out = 48;
  TapeFixture rig;
  Tape& t = rig.tape;
  double sum = 5;
  Parameter w, copy;
  w.full_shape = w.local_shape = {out, in};
  w.value = rig.tensor({out, in}, 1), w.grad = rig.tensor({out, in}, 2);
  CHECK_FALSE(grad_squares(w));
  w.squares = &sum;
  copy.adds_to = &w;
  CHECK(grad_squares(copy).as<double>() == &sum);
  grad_dst(copy);
  CHECK(sum == -1);
  const Var v = t.input(rig.tensor({n, in}, 3), true), y = ops::linear(t, v, w, nullptr);
  t.seed(y, rig.tensor({n, out}, 4));
  t.backward();
  double squares = 0;
  for (const float g : values(w.grad)) squares += double{g} * g;
  CHECK((sum == Approx(squares).epsilon(1e-12) || (sum == -1 && cpu::native_split_gemm() == nullptr)));
  sum = 5;
  grad_dst(w);
  CHECK(sum == -1);
}
