// Collectives as differentiable ops, and the vocabulary split over ranks: groups of 1, 2 and 4 threads against one rank
// and against a reference in double.
#include <cmath>
#include <deque>
#include <mutex>
#include <numeric>

#include "autograd/ops.h"
#include "kernels/backend.h"
#include "kernels/core/rng.h"
#include "parallel/tensor/collective_ops.h"
#include "tests/parallel/comm_suite.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

Floats normals(int64_t n, uint64_t seed, double std = 1) {
  Floats out(static_cast<size_t>(n));
  philox_normals(stream_key(seed, "test/tensor"), 0, n, std, out.data());
  return out;
}
Tensor view(Floats& v, Shape s) { return {reinterpret_cast<std::byte*>(v.data()), s, DType::kF32, {}}; }
Tensor view(std::vector<int32_t>& v, Shape s) { return {reinterpret_cast<std::byte*>(v.data()), s, DType::kI32, {}}; }

struct TensorFixture {
  Arena arena;
  Pool pool;
  Tape tape;
  std::unique_ptr<ProcessGroup> group;
  explicit TensorFixture(GroupFactory& f)
      : arena(Buffer(1 << 18, {}, *cpu_backend().device)),
        pool(Buffer(1 << 18, {}, *cpu_backend().device)),
        tape(arena, pool, *cpu_backend().ops, {}, 64) {
    std::vector<int> all(static_cast<size_t>(f.world_size()));
    std::iota(all.begin(), all.end(), 0);
    group = f.make(all);
  }
};

void on_ranks(int ranks, const std::function<void(GroupFactory&)>& body) {
  for (const std::string& error : suite::run_threads(ranks, body)) CHECK(error == "");
}

void expect_near(double got, double reference, const std::string& what, double tolerance = 2e-6) {
  GT_CHECK(std::abs(got - reference) <= tolerance * (1 + std::abs(reference)), what, ": ", got, " instead of ",
           reference);
}
void expect_equal(const Tensor& got, const Floats& reference, const std::string& what) {
  GT_CHECK(got.numel() == static_cast<int64_t>(reference.size()), what);
  for (int64_t i = 0; i < got.numel(); ++i)
    GT_CHECK(got.as<float>()[i] == reference[static_cast<size_t>(i)], what, " element ", i, ": ", got.as<float>()[i],
             " instead of ", reference[static_cast<size_t>(i)]);
}

Parameter parameter(Floats& value, Floats& grad, Shape s) {
  Parameter p;
  p.name = "p";
  p.full_shape = p.local_shape = s;
  p.value = view(value, s);
  p.grad = view(grad, s);
  p.version = 1;
  return p;
}

}  // namespace

TEST_CASE("copy_to_group sums gradients over the group and reduce_from_group sums values") {
  for (int ranks : {1, 2, 4})
    on_ranks(ranks, [ranks](GroupFactory& f) {
      TensorFixture rig(f);
      Tape& t = rig.tape;
      // Small integers: sums are exact in any order.
      Floats x(6), dy(6);
      for (size_t i = 0; i < 6; ++i) {
        x[i] = static_cast<float>(i);
        dy[i] = static_cast<float>(10 * (f.world_rank() + 1)) + static_cast<float>(i);
      }
      const Floats dy_before = dy;
      const Var in = t.input(view(x, {2, 3}), true), y = ops::copy_to_group(t, in, *rig.group);
      expect_equal(y.value, x, "copy forward");
      t.seed(y, view(dy, {2, 3}));
      t.backward();
      Floats summed(6);
      for (size_t i = 0; i < 6; ++i)
        summed[i] = static_cast<float>(10 * ranks * (ranks + 1) / 2 + ranks * static_cast<int>(i));
      expect_equal(t.grad(in), summed, "copy backward");
      GT_CHECK(dy == dy_before, "the seed was overwritten");
      t.reset();

      Floats part = dy;
      const Var partial = t.input(view(part, {2, 3}), true), z = ops::reduce_from_group(t, partial, *rig.group);
      expect_equal(z.value, summed, "reduce forward");
      t.seed(z, view(dy, {2, 3}));
      t.backward();
      expect_equal(t.grad(partial), dy_before, "reduce backward");
      t.reset();
      GT_CHECK(rig.pool.live() == 0, "gradients left in the pool");
    });
}

TEST_CASE("the reduction over the group does not modify a slot that shares the gradient") {
  for (int ranks : {1, 2, 4})
    on_ranks(ranks, [ranks](GroupFactory& f) {
      TensorFixture rig(f);
      Tape& t = rig.tape;
      Floats x(6, 1), w(6, 2), dy(6, 3);
      const Var in = t.input(view(x, {2, 3}), true), other = t.input(view(w, {2, 3}), true);
      // The first addend's gradient is a pool block that `other` shares.
      t.seed(ops::add(t, ops::gelu(t, ops::add(t, other, ops::copy_to_group(t, in, *rig.group))), other),
             view(dy, {2, 3}));
      t.backward();
      const float shared = (t.grad(other).as<float>()[0] - 3) * static_cast<float>(ranks);
      for (int64_t i = 0; i < 6; ++i) expect_near(t.grad(in).as<float>()[i], shared, "summed gradient");
      for (int64_t i = 0; i < 6; ++i)
        expect_near(t.grad(other).as<float>()[i], 3 + shared / static_cast<float>(ranks), "own gradient");
      GT_CHECK(shared > 0, "no gradient");
      t.reset();
    });
}

TEST_CASE("gather_rows and scatter_rows are each other's backward") {
  constexpr int64_t n = 8, cols = 3;
  for (int ranks : {1, 2, 4})
    on_ranks(ranks, [ranks](GroupFactory& f) {
      TensorFixture rig(f);
      Tape& t = rig.tape;
      const int64_t part = n / ranks, at = part * cols * f.world_rank(), count = part * cols;
      // Small integers: sums are exact in any order. dy of rank r is (r + 1) times the element's number.
      Floats whole(n * cols), summed(n * cols), dy(n * cols);
      for (size_t i = 0; i < whole.size(); ++i) {
        whole[i] = static_cast<float>(i);
        dy[i] = static_cast<float>(f.world_rank() + 1) * whole[i];
        summed[i] = static_cast<float>(ranks * (ranks + 1) / 2) * whole[i];
      }
      const Floats own(whole.begin() + at, whole.begin() + at + count),
          own_sum(summed.begin() + at, summed.begin() + at + count), dy_before = dy;
      Floats x = own;
      const Var in = t.input(view(x, {part, cols}), true), all = ops::gather_rows(t, in, *rig.group);
      expect_equal(all.value, whole, "gather forward");
      t.seed(all, view(dy, {n, cols}));
      t.backward();
      expect_equal(t.grad(in), own_sum, "gather backward");
      GT_CHECK(dy == dy_before, "the seed was overwritten");
      t.reset();

      Floats part_of_sum = dy;
      const Var partial = t.input(view(part_of_sum, {n, cols}), true), y = ops::scatter_rows(t, partial, *rig.group);
      expect_equal(y.value, own_sum, "scatter forward");
      Floats seed = own;
      t.seed(y, view(seed, {part, cols}));
      t.backward();
      expect_equal(t.grad(partial), whole, "scatter backward");
      t.reset();
      GT_CHECK(rig.pool.live() == 0 && rig.arena.used() == 0, "memory left behind");
    });
}

TEST_CASE("the gradient of gathered rows accumulates into an existing one") {
  for (int ranks : {1, 2, 4})
    on_ranks(ranks, [ranks](GroupFactory& f) {
      TensorFixture rig(f);
      Tape& t = rig.tape;
      Floats x(6, 1), dy(static_cast<size_t>(6 * ranks), 3);
      const Var in = t.input(view(x, {2, 3}), true);
      const Var all = ops::gather_rows(t, in, *rig.group), again = ops::gather_rows(t, in, *rig.group);
      t.seed(ops::add(t, all, again), view(dy, {2 * ranks, 3}));
      t.backward();
      expect_equal(t.grad(in), Floats(6, static_cast<float>(6 * ranks)), "sum");
      t.reset();
      GT_CHECK(rig.pool.live() == 0, "gradients left in the pool");
    });
}

namespace {

struct Perceptron {
  static constexpr int64_t n = 8, hidden = 6, inner = 8;
  Floats y, dx, dup, ddown, ddown_b;  // of this rank's rows and slices
};

// A column- and a row-parallel layer on tokens split over the ranks, x [n/t, hidden] -> y [n/t, hidden].
Perceptron sequence_parallel_perceptron(GroupFactory& f, Pass pass) {
  constexpr int64_t n = Perceptron::n, hidden = Perceptron::hidden, inner = Perceptron::inner;
  const Floats x = normals(n * hidden, 1), up = normals(inner * hidden, 2, 0.4), down = normals(hidden * inner, 3, 0.4),
               dy = normals(n * hidden, 4), bias = normals(hidden, 5);
  TensorFixture rig(f);
  Tape& t = rig.tape;
  const int64_t part = inner / f.world_size(), first = part * f.world_rank(), rows = n / f.world_size(),
                at = rows * f.world_rank() * hidden;
  Floats my_up(up.begin() + first * hidden, up.begin() + (first + part) * hidden), my_down,
      my_b = bias, dup(my_up.size(), 9), db(bias.size(), 9), my_x(x.begin() + at, x.begin() + at + rows * hidden),
      seed(dy.begin() + at, dy.begin() + at + rows * hidden);
  for (int64_t r = 0; r < hidden; ++r)
    for (int64_t c = 0; c < part; ++c) my_down.push_back(down[static_cast<size_t>(r * inner + first + c)]);
  Floats ddown(my_down.size(), 9);
  Parameter w_up = parameter(my_up, dup, {part, hidden}), w_down = parameter(my_down, ddown, {hidden, part}),
            b = parameter(my_b, db, {hidden});
  const Var in = t.input(view(my_x, {rows, hidden}), true), all = ops::gather_rows(t, in, *rig.group);
  const Var z = ops::linear(t, all, w_up);
  ops::regather_rows(t, in, all, *rig.group);
  const Var product = ops::linear(t, ops::gelu(t, z), w_down, nullptr, ops::Output::kTransient);
  const Var y = ops::add_bias(t, ops::scatter_rows(t, product, *rig.group), b);
  GT_CHECK(f.world_size() == 1 || rig.pool.live() == 0, "gathered rows or partial sums outlive the forward");
  Perceptron out;
  out.y.assign(y.value.as<float>(), y.value.as<float>() + rows * hidden);
  t.seed(y, view(seed, {rows, hidden}));
  t.backward(0, pass);
  const Tensor dx = t.grad(in);
  out.dx.assign(dx.as<float>(), dx.as<float>() + rows * hidden);
  if (pass == Pass::kInput) t.run_deferred();
  out.dup = dup;
  out.ddown = ddown;
  out.ddown_b = db;
  t.reset();
  GT_CHECK(rig.pool.live() == 0 && rig.arena.used() == 0, "memory left behind");
  return out;
}

}  // namespace

TEST_CASE("a sequence-parallel MLP equals the dense one, with immediate or deferred weight gradients") {
  using P = Perceptron;
  P one;
  for (int ranks : {1, 2, 4}) {
    Floats db(P::hidden, 0.f);
    std::mutex mutex;
    on_ranks(ranks, [&](GroupFactory& f) {
      const P mine = sequence_parallel_perceptron(f, Pass::kFull),
              split = sequence_parallel_perceptron(f, Pass::kInput);
      GT_CHECK(mine.y == split.y && mine.dx == split.dx && mine.dup == split.dup && mine.ddown == split.ddown &&
                   mine.ddown_b == split.ddown_b,
               "deferred weight gradients have other bits");
      if (ranks == 1) one = mine;
      const int64_t part = P::inner / ranks, first = part * f.world_rank(),
                    at = P::n / ranks * f.world_rank() * P::hidden;
      for (size_t i = 0; i < mine.y.size(); ++i) {
        expect_near(mine.y[i], one.y[static_cast<size_t>(at) + i], "y");
        expect_near(mine.dx[i], one.dx[static_cast<size_t>(at) + i], "dx");
      }
      for (size_t i = 0; i < mine.dup.size(); ++i)
        expect_near(mine.dup[i], one.dup[static_cast<size_t>(first * P::hidden) + i], "d up");
      for (int64_t r = 0; r < P::hidden; ++r)
        for (int64_t c = 0; c < part; ++c)
          expect_near(mine.ddown[static_cast<size_t>(r * part + c)],
                      one.ddown[static_cast<size_t>(r * P::inner + first + c)], "d down");
      const std::lock_guard lock(mutex);
      for (size_t i = 0; i < db.size(); ++i) db[i] += mine.ddown_b[i];
    });
    for (size_t i = 0; i < db.size(); ++i) CHECK(db[i] == Approx(one.ddown_b[i]).epsilon(1e-5));  // partial sums
  }
}

TEST_CASE("a tensor-parallel MLP equals the dense one") {
  constexpr int64_t n = 5, hidden = 6, inner = 8;
  Floats x = normals(n * hidden, 1), up = normals(inner * hidden, 2, 0.4), down = normals(hidden * inner, 3, 0.4),
         dy = normals(n * hidden, 4);
  Floats y1, dx1, dup1, ddown1;  // on one rank
  for (int ranks : {1, 2, 4})
    on_ranks(ranks, [&](GroupFactory& f) {
      TensorFixture rig(f);
      Tape& t = rig.tape;
      const int64_t part = inner / ranks, first = part * f.world_rank();
      Floats my_up(up.begin() + first * hidden, up.begin() + (first + part) * hidden), my_down, dup(my_up.size(), 9),
          seed = dy, my_x = x;
      for (int64_t r = 0; r < hidden; ++r)
        for (int64_t c = 0; c < part; ++c) my_down.push_back(down[static_cast<size_t>(r * inner + first + c)]);
      Floats ddown(my_down.size(), 9);
      Parameter w_up = parameter(my_up, dup, {part, hidden}), w_down = parameter(my_down, ddown, {hidden, part});
      const Var in = t.input(view(my_x, {n, hidden}), true);
      const Var h = ops::gelu(t, ops::linear(t, ops::copy_to_group(t, in, *rig.group), w_up));
      const Var y = ops::reduce_from_group(t, ops::linear(t, h, w_down), *rig.group);
      const Floats result(y.value.as<float>(), y.value.as<float>() + n * hidden);
      t.seed(y, view(seed, {n, hidden}));
      t.backward();
      const Tensor dx = t.grad(in);
      if (ranks == 1) {
        y1 = result;
        dx1.assign(dx.as<float>(), dx.as<float>() + n * hidden);
        dup1 = dup;
        ddown1 = ddown;
      }
      for (size_t i = 0; i < result.size(); ++i) {
        expect_near(result[i], y1[i], "y");
        expect_near(dx.as<float>()[i], dx1[i], "dx");
      }
      for (size_t i = 0; i < dup.size(); ++i)
        expect_near(dup[i], dup1[static_cast<size_t>(first * hidden) + i], "d up");
      for (int64_t r = 0; r < hidden; ++r)
        for (int64_t c = 0; c < part; ++c)
          expect_near(ddown[static_cast<size_t>(r * part + c)], ddown1[static_cast<size_t>(r * inner + first + c)],
                      "d down");
      t.reset();
    });
}

namespace {

constexpr int64_t kTokens = 7, kHidden = 5;

// Rows per rank when `vocab` rows are padded to a multiple of 4 per rank: the program pads to 128 by the same rule.
int64_t rows_of(int64_t vocab, int ranks) { return (vocab + 4 * ranks - 1) / (4 * ranks) * 4; }

// This rank's rows of the table; padding rows are 0.
Floats local_rows(const Floats& table, int64_t vocab, int64_t rows, int rank) {
  Floats out(static_cast<size_t>(rows * kHidden), 0.f);
  for (int64_t r = 0; r < rows && rank * rows + r < vocab; ++r)
    for (int64_t c = 0; c < kHidden; ++c)
      out[static_cast<size_t>(r * kHidden + c)] = table[static_cast<size_t>((rank * rows + r) * kHidden + c)];
  return out;
}

}  // namespace

TEST_CASE("a vocabulary-parallel embedding of this rank's rows and its gradient are bitwise those of one table") {
  constexpr int64_t vocab = 13, n = 8;
  const Floats table = normals(vocab * kHidden, 1), dy = normals(n * kHidden, 2);
  const std::vector<int32_t> tokens{0, 12, 3, 3, 7, 12, 3, 1};
  Floats dtable(static_cast<size_t>(vocab * kHidden), 0.f);
  for (size_t i = 0; i < tokens.size(); ++i)
    for (size_t c = 0; c < kHidden; ++c) dtable[static_cast<size_t>(tokens[i]) * kHidden + c] += dy[i * kHidden + c];
  for (int ranks : {1, 2, 4})
    on_ranks(ranks, [&](GroupFactory& f) {
      TensorFixture rig(f);
      Tape& t = rig.tape;
      const int64_t rows = rows_of(vocab, ranks), part = n / ranks, at = part * f.world_rank();
      Floats mine = local_rows(table, vocab, rows, f.world_rank()), grad(mine.size(), 9.f),
             seed(dy.begin() + at * kHidden, dy.begin() + (at + part) * kHidden);
      std::vector<int32_t> ids = tokens;
      Parameter w = parameter(mine, grad, {rows, kHidden});
      const Var y = ops::vocab_embedding(t, view(ids, {2, n / 2}), w, rows * f.world_rank(), {*rig.group, true});
      Floats expected;
      for (int64_t i = at; i < at + part; ++i) {
        const auto row = table.begin() + tokens[static_cast<size_t>(i)] * kHidden;
        expected.insert(expected.end(), row, row + kHidden);
      }
      expect_equal(y.value, expected, "rows");
      t.seed(y, view(seed, {part, kHidden}));
      t.backward();
      expect_equal(w.grad, local_rows(dtable, vocab, rows, f.world_rank()), "gradient rows");
      t.reset();
      GT_CHECK(rig.pool.live() == 0 && rig.arena.used() == 0, "memory left behind");
    });
}

TEST_CASE("the rows of a rank are a contiguous range of the flat microbatch, in rank order") {
  on_ranks(4, [](GroupFactory& f) {
    TensorFixture rig(f);
    MicroBatch mb;
    mb.batch = 3;
    mb.seq = 8;
    const RowSlice whole = TensorAxis{*rig.group}.rows(mb), own = TensorAxis{*rig.group, true}.rows(mb);
    GT_CHECK(whole.first == 0 && whole.rows == 24, "not cut");
    GT_CHECK(own.first == 6 * f.world_rank() && own.rows == 6, "cut in four");
    mb.seq = 7;
    bool refused = false;
    try {
      TensorAxis{*rig.group, true}.rows(mb);
    } catch (const Error& e) { refused = std::string(e.what()).find("3 sequences of 7 tokens") != std::string::npos; }
    GT_CHECK(refused, "21 rows cut in four");
  });
}

TEST_CASE("a vocabulary-parallel embedding and its gradient are bitwise those of one table") {
  constexpr int64_t vocab = 13;
  const Floats table = normals(vocab * kHidden, 1), dy = normals(kTokens * kHidden, 2);
  const std::vector<int32_t> tokens{0, 12, 3, 3, 7, 12, 3};
  Floats dtable(static_cast<size_t>(vocab * kHidden), 0.f);
  for (size_t i = 0; i < tokens.size(); ++i)
    for (size_t c = 0; c < kHidden; ++c) dtable[static_cast<size_t>(tokens[i]) * kHidden + c] += dy[i * kHidden + c];
  for (int ranks : {1, 2, 4})
    on_ranks(ranks, [&](GroupFactory& f) {
      TensorFixture rig(f);
      Tape& t = rig.tape;
      const int64_t rows = rows_of(vocab, ranks), first = rows * f.world_rank();
      Floats mine = local_rows(table, vocab, rows, f.world_rank()), grad(mine.size(), 9.f), seed = dy;
      std::vector<int32_t> ids = tokens;
      Parameter w = parameter(mine, grad, {rows, kHidden});
      const Var y = ops::vocab_embedding(t, view(ids, {1, kTokens}), w, first, {*rig.group});
      Floats expected;
      for (int32_t id : tokens)
        expected.insert(expected.end(), table.begin() + id * kHidden, table.begin() + (id + 1) * kHidden);
      expect_equal(y.value, expected, "rows");
      t.seed(y, view(seed, {kTokens, kHidden}));
      t.backward();
      expect_equal(w.grad, local_rows(dtable, vocab, rows, f.world_rank()), "gradient rows");
      t.reset();
    });
}

namespace {

struct HeadReference {
  double loss = 0, hits = 0;
  Doubles dx, dw;
};

HeadReference head_reference(const Floats& x, const Floats& w, const std::vector<int32_t>& targets, int64_t vocab,
                             double seed) {
  HeadReference r{0, 0, Doubles(x.size()), Doubles(w.size())};
  for (int64_t i = 0; i < kTokens; ++i) {
    if (targets[static_cast<size_t>(i)] < 0) continue;
    Doubles z(static_cast<size_t>(vocab));
    double top = -1e300, sum = 0;
    for (int64_t v = 0; v < vocab; ++v) {
      for (int64_t c = 0; c < kHidden; ++c)
        z[static_cast<size_t>(v)] +=
            double{x[static_cast<size_t>(i * kHidden + c)]} * w[static_cast<size_t>(v * kHidden + c)];
      top = std::max(top, z[static_cast<size_t>(v)]);
    }
    for (double v : z) sum += std::exp(v - top);
    r.loss += std::log(sum) + top - z[static_cast<size_t>(targets[static_cast<size_t>(i)])];
    r.hits += z[static_cast<size_t>(targets[static_cast<size_t>(i)])] == top;
    for (int64_t v = 0; v < vocab; ++v) {
      const double dz =
          seed * (std::exp(z[static_cast<size_t>(v)] - top) / sum - (v == targets[static_cast<size_t>(i)] ? 1 : 0));
      for (int64_t c = 0; c < kHidden; ++c) {
        r.dx[static_cast<size_t>(i * kHidden + c)] += dz * w[static_cast<size_t>(v * kHidden + c)];
        r.dw[static_cast<size_t>(v * kHidden + c)] += dz * x[static_cast<size_t>(i * kHidden + c)];
      }
    }
  }
  return r;
}

void check_head(int ranks, int64_t vocab, const std::vector<int32_t>& targets, int64_t chunk, int microbatches = 1) {
  const Floats x = normals(kTokens * kHidden, 1), w = normals(vocab * kHidden, 2);
  const double seed = 0.25;
  const HeadReference reference = head_reference(x, w, targets, vocab, seed);
  on_ranks(ranks, [&](GroupFactory& f) {
    TensorFixture rig(f);
    Tape& t = rig.tape;
    const int64_t rows = rows_of(vocab, ranks), first = rows * f.world_rank();
    Floats mine = local_rows(w, vocab, rows, f.world_rank()), grad(mine.size(), 9.f), my_x = x,
           dloss{static_cast<float>(seed)};
    std::vector<int32_t> ids = targets;
    Parameter p = parameter(mine, grad, {rows, kHidden});
    MicroBatch mb;
    mb.batch = 1;
    mb.seq = kTokens;
    mb.targets = view(ids, {1, kTokens});
    mb.dloss = view(dloss, {1});
    double one = 1, loss = 0;
    for (int m = 0; m < microbatches; ++m) {
      const Var in = t.input(view(my_x, {kTokens, kHidden}), true);
      const Var l = ops::head_cross_entropy(t, ops::copy_to_group(t, in, *rig.group), p, mb, vocab, chunk, *rig.group);
      GT_CHECK(l.value.dtype == DType::kF64 && l.value.numel() == 1, "the loss is one f64");
      loss = l.value.as<double>()[0];
      expect_near(loss, reference.loss, "loss");
      t.seed(l, {reinterpret_cast<std::byte*>(&one), {1}, DType::kF64, {}});
      t.backward();
      for (size_t i = 0; i < x.size(); ++i) expect_near(t.grad(in).as<float>()[i], reference.dx[i], "dx");
      t.reset();
      GT_CHECK(rig.pool.live() == 0 && rig.arena.used() == 0, "memory left behind");
    }
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < kHidden; ++c) {
        const float got = grad[static_cast<size_t>(r * kHidden + c)];
        if (first + r < vocab)
          expect_near(got, microbatches * reference.dw[static_cast<size_t>((first + r) * kHidden + c)], "dW");
        else
          GT_CHECK(got == 0, "a padded row has gradient ", got);
      }
    p.grad_dirty = false;
    t.set_recording(false);
    const Var l =
        ops::head_cross_entropy(t, t.input(view(my_x, {kTokens, kHidden}), true), p, mb, vocab, chunk, *rig.group);
    GT_CHECK(l.value.as<double>()[0] == loss, "evaluation gives other bits than training");
    GT_CHECK(l.value.as<double>()[1] == reference.hits, "hits ", l.value.as<double>()[1], ", expected ",
             reference.hits);
    GT_CHECK(!p.grad_dirty, "evaluation made a gradient");
  });
}

}  // namespace

TEST_CASE("the chunked vocabulary-parallel cross-entropy equals the dense one") {
  const std::vector<int32_t> targets{0, 12, -1, 5, -1, 8, 3};
  for (int ranks : {1, 2, 4})
    for (int64_t chunk : {int64_t{1}, int64_t{3}, kTokens, int64_t{100}}) {
      INFO("ranks " << ranks << " chunk " << chunk);
      check_head(ranks, 13, targets, chunk);
    }
  for (int ranks : {1, 4}) check_head(ranks, 13, targets, 3, 2);  // the second microbatch accumulates
}

TEST_CASE("ranks whose whole slice is padding, and microbatches without any target, are legal") {
  for (int64_t chunk : {int64_t{3}, kTokens}) {
    check_head(4, 5, {4, 0, 1, 2, 3, 4, -1}, chunk);  // ranks 2 and 3 hold padding only
    check_head(2, 13, std::vector<int32_t>(kTokens, -1), chunk);
  }
}
