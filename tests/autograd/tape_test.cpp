// The tape on a block of every rank-free op: three ways to run the backward, finite differences, ownership of
// gradients, and memory left afterwards.
#include <cmath>
#include <cstring>
#include <functional>
#include <span>

#include "tests/autograd/tape_fixture.h"
#include "tests/support/test.h"

using namespace gt;
using namespace gt::rig;

namespace {

double dot(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.numel(); ++i) sum += double{a.as<float>()[i]} * b.as<float>()[i];
  return sum;
}

struct Outcome {
  std::vector<float> y, dx;
  std::vector<std::vector<float>> grads;
  int64_t activation_peak = 0;
  friend bool operator==(const Outcome& a, const Outcome& b) {
    return a.y == b.y && a.dx == b.dx && a.grads == b.grads;
  }
};

Outcome run(TapeFixture& rig, std::vector<Block*> blocks, std::span<const Tensor> xs, Tensor dy, How how) {
  const bool split = how == How::kSplit || how == How::kRecomputeSplit;
  Outcome out;
  Tape& t = rig.tape;
  for (Block* b : blocks)
    for (Parameter* p : b->params()) p->grad_dirty = false;
  const int64_t before = rig.arena.used();
  for (const Tensor& x : xs) {
    const Var in = t.input(x, true);
    Var h = in;
    for (Block* b : blocks)
      h = how >= How::kRecompute ? ops::recompute(t, h, [b](Tape& tape, Var v) { return (*b)(tape, v); }) : (*b)(t, h);
    for (float v : values(h.value)) out.y.push_back(v);
    t.seed(h, dy);
    t.backward(0, split ? Pass::kInput : Pass::kFull);
    if (split)
      t.run_deferred();
    else
      CHECK(rig.arena.used() == before);
    for (float v : values(t.grad(in))) out.dx.push_back(v);
    t.reset();
    CHECK(t.size() == 0);
    CHECK(rig.pool.live() == 0);
    CHECK(rig.arena.used() == before);
  }
  for (Block* b : blocks)
    for (Parameter* p : b->params()) {
      CHECK(p->grad_dirty);
      out.grads.push_back(values(p->grad));
    }
  out.activation_peak = rig.arena.high_water();
  return out;
}

}  // namespace

TEST_CASE("plain, split and recomputed backward are bitwise identical over several microbatches") {
  TapeFixture rig, fresh;
  Block one(rig, 10), two(rig, 50), three(rig, 90);
  const std::vector<Block*> blocks{&one, &two, &three};
  const std::vector<Tensor> xs{rig.tensor({kTokens, kHidden}, 1), rig.tensor({kTokens, kHidden}, 2),
                               rig.tensor({kTokens, kHidden}, 3)};
  const Tensor dy = rig.tensor({kTokens, kHidden}, 4);
  const std::vector<float> seed = values(dy);
  const Outcome plain = run(rig, blocks, xs, dy, How::kPlain);
  CHECK(plain == run(rig, blocks, xs, dy, How::kPlain));
  CHECK(plain == run(rig, blocks, xs, dy, How::kSplit));
  const Outcome recomputed = run(fresh, blocks, xs, dy, How::kRecompute);
  CHECK(plain == recomputed);
  CHECK(plain == run(rig, blocks, xs, dy, How::kRecomputeSplit));
  CHECK(recomputed.activation_peak < plain.activation_peak);
  CHECK(values(dy) == seed);

  for (Block* b : blocks) b->keep = ops::Keep::kInputs;
  TapeFixture lean;
  const Outcome rebuilt = run(lean, blocks, xs, dy, How::kPlain);
  CHECK(plain == rebuilt);
  CHECK(rebuilt.activation_peak < plain.activation_peak);
  for (How how : {How::kSplit, How::kRecompute, How::kRecomputeSplit}) {
    INFO("mode " << static_cast<int>(how));
    CHECK(plain == run(rig, blocks, xs, dy, how));
  }
}

TEST_CASE("a discarded value must be rebuilt before the backward reads it, others are freed with their node") {
  TapeFixture rig;
  Block p(rig, 10);
  Tape& t = rig.tape;
  for (Parameter* q : p.params()) q->grad_dirty = false;
  const Var x = t.input(rig.tensor({kTokens, kHidden}, 1), true);
  const ops::Normed n = ops::add_norm(t, x, nullptr, {&p.gamma1, &p.beta1}, ops::Keep::kInputs);
  const Var y = ops::linear(t, n.out, p.in);
  CHECK(rig.pool.live() == 1);
  t.seed(y, rig.tensor({kTokens, kHidden}, 2));
  SECTION("not discarded") {
    t.backward();
    CHECK(rig.pool.live() == 1);  // the gradient of x
  }
  SECTION("discarded and not rebuilt") {
    t.discard(n.out);
    CHECK(rig.pool.live() == 0);
    CHECK_THROWS_WITH(t.backward(), Catch::Contains("read before it is rebuilt"));
  }
  SECTION("discarded and rebuilt") {
    ops::discard(t, n, {&p.gamma1, &p.beta1}, ops::Keep::kInputs);
    CHECK(rig.pool.live() == 0);
    t.backward();
    CHECK(rig.pool.live() == 1);
  }
  t.reset();
  CHECK(rig.pool.live() == 0);
}

TEST_CASE("gradients of microbatches accumulate to the sum of each alone") {
  TapeFixture rig;
  Block block(rig, 10);
  const std::vector<Tensor> xs{rig.tensor({kTokens, kHidden}, 1), rig.tensor({kTokens, kHidden}, 2),
                               rig.tensor({kTokens, kHidden}, 3)};
  const Tensor dy = rig.tensor({kTokens, kHidden}, 4);
  const Outcome all = run(rig, {&block}, xs, dy, How::kPlain);
  std::vector<Outcome> each;
  for (const Tensor& x : xs) each.push_back(run(rig, {&block}, {&x, 1}, dy, How::kPlain));
  for (size_t p = 0; p < all.grads.size(); ++p)
    for (size_t i = 0; i < all.grads[p].size(); ++i) {
      INFO(block.params()[p]->name << " " << i);
      CHECK(all.grads[p][i] ==
            Approx(double{each[0].grads[p][i]} + each[1].grads[p][i] + each[2].grads[p][i]).epsilon(1e-4).margin(1e-5));
    }
}

TEST_CASE("gradients of every parameter and of the input equal central finite differences") {
  TapeFixture rig;
  Block block(rig, 10);
  const Tensor x = rig.tensor({kTokens, kHidden}, 1), dy = rig.tensor({kTokens, kHidden}, 4);
  const Outcome plain = run(rig, {&block}, {&x, 1}, dy, How::kPlain);
  const auto objective = [&] {
    for (Parameter* p : block.params())
      p->version = fresh_version();  // values were overwritten: packed copies are
                                     // stale
    rig.tape.set_recording(false);
    const double l = dot(block(rig.tape, rig.tape.input(x, false)).value, dy);
    rig.tape.set_recording(true);
    rig.tape.reset();
    return l;
  };
  const auto check = [&](const std::string& name, Tensor v, const std::vector<float>& grad) {
    const std::vector<float> keep = values(v);
    const uint64_t key = stream_key(7, name);
    const auto along = [&](const std::function<double(int64_t)>& direction, double e) {
      double exact = 0, at[2] = {};
      for (int side : {0, 1}) {
        for (int64_t i = 0; i < v.numel(); ++i)
          v.as<float>()[i] = static_cast<float>(double{keep[static_cast<size_t>(i)]} + (side ? -e : e) * direction(i));
        at[side] = objective();
      }
      for (int64_t i = 0; i < v.numel(); ++i) {
        exact += direction(i) * double{grad[static_cast<size_t>(i)]};
        v.as<float>()[i] = keep[static_cast<size_t>(i)];
      }
      INFO(name);
      CHECK(exact == Approx((at[0] - at[1]) / (2 * e)).epsilon(5e-3).margin(5e-3));
    };
    const double whole = 4e-3 / std::sqrt(static_cast<double>(v.numel()));
    for (uint64_t k = 0; k < 3; ++k)
      along([&](int64_t i) { return philox_normal(key, k << 32 | static_cast<uint64_t>(i)); }, whole);
    for (int64_t one : {int64_t{0}, v.numel() / 2, v.numel() - 1})
      along([&](int64_t i) { return i == one ? 1.0 : 0.0; }, 4e-3);
  };
  for (size_t p = 0; p < block.params().size(); ++p)
    check(block.params()[p]->name, block.params()[p]->value, plain.grads[p]);
  check("input", x, plain.dx);
  for (int64_t c = 0; c < kHidden; ++c)
    CHECK(plain.grads[1][static_cast<size_t>(kSeq * kHidden + c)] == 0);  // an unused position
}

TEST_CASE("an operand used twice by one add gets twice the gradient and the upstream gradient is not modified") {
  TapeFixture rig;
  const Tensor x = rig.tensor({4, 6}, 1), dy = rig.tensor({4, 6}, 2);
  const std::vector<float> seed = values(dy);
  const Var in = rig.tape.input(x, true), y = ops::add(rig.tape, in, in);
  rig.tape.seed(y, dy);
  rig.tape.backward();
  const std::vector<float> dx = values(rig.tape.grad(in));
  for (size_t i = 0; i < seed.size(); ++i) CHECK(dx[i] == 2 * seed[i]);
  CHECK(values(dy) == seed);
  rig.tape.reset();
  CHECK(rig.pool.live() == 0);
}

TEST_CASE("a slot with a shared gradient is never overwritten by the other owner") {
  TapeFixture rig;
  Block p(rig, 10);
  Tape& t = rig.tape;
  for (Parameter* q : p.params()) q->grad_dirty = false;
  const Tensor dy = rig.tensor({kTokens, kHidden}, 3);
  const std::vector<float> seed = values(dy);
  const Var x = t.input(rig.tensor({kTokens, kHidden}, 1), true), w = t.input(rig.tensor({kTokens, kHidden}, 2), true);
  const Var delta = t.input(rig.tensor({kTokens, kHidden}, 5), true),
            side = t.input(rig.tensor({kTokens, kHidden}, 6), true);

  SECTION("a norm whose sum shares its gradient with another addend") {
    auto [s, n, codes] = ops::add_norm(t, x, &delta, {&p.gamma1, &p.beta1});
    t.seed(ops::add(t, ops::add(t, s, w), ops::linear(t, n, p.in)), dy);
    t.backward();
    CHECK(values(t.grad(w)) == seed);
    CHECK(values(t.grad(x)) == values(t.grad(delta)));
    CHECK(values(t.grad(x)) != seed);
  }
  SECTION("addends of a residual add that other ops accumulate into") {
    const Var y = ops::add(t, x, w);  // the residual at a stage's end
    t.seed(ops::add(t, ops::add(t, y, ops::gelu(t, x)), ops::gelu(t, side)),
           dy);  // x and side accumulate on shared bytes
    t.backward();
    CHECK(values(t.grad(w)) == seed);
    const std::vector<float> dx = values(t.grad(x));
    for (size_t i = 0; i < dx.size(); ++i) {
      const double z = x.value.as<float>()[i], c = std::sqrt(2 / M_PI), th = std::tanh(c * (z + 0.044715 * z * z * z));
      const double slope = 0.5 * (1 + th) + 0.5 * z * (1 - th * th) * c * (1 + 3 * 0.044715 * z * z);
      CHECK(dx[i] == Approx(seed[i] * (1 + slope)).epsilon(1e-5).margin(1e-6));
    }
  }
  SECTION("the same gradient twice into one slot, once through a norm") {
    auto [s, n, codes] = ops::add_norm(t, x, &delta, {&p.gamma1, &p.beta1});
    const Var y = ops::add(t, ops::add(t, s, n), s);  // s: 2 dy and the norm's contribution; n: dy
    t.seed(y, dy);
    t.backward();
    double sum_x = 0, sum_seed = 0;  // layer norm's dx has zero mean: rows of dx sum to rows of 2 dy
    for (int64_t c = 0; c < kHidden; ++c) {
      sum_x += t.grad(x).as<float>()[c];
      sum_seed += 2.0 * seed[static_cast<size_t>(c)];
    }
    CHECK(sum_x == Approx(sum_seed).epsilon(1e-4).margin(1e-4));
  }
  CHECK(values(dy) == seed);
  t.reset();
  CHECK(rig.pool.live() == 0);
}

TEST_CASE("dropout alone and fused into a norm's sum are bitwise identical forward and backward") {
  TapeFixture rig;
  Block p(rig, 10);
  Tape& t = rig.tape;
  const Tensor dsum = rig.tensor({kTokens, kHidden}, 3), dout = rig.tensor({kTokens, kHidden}, 7);
  const auto run = [&](bool fused) {
    for (Parameter* q : p.params()) q->grad_dirty = false;
    const Var x = t.input(rig.tensor({kTokens, kHidden}, 1), true),
              delta = t.input(rig.tensor({kTokens, kHidden}, 5), true);
    const Var dropped = fused ? delta : ops::dropout(t, delta, p.drop);
    const ops::Normed n =
        ops::add_norm(t, x, &dropped, {&p.gamma1, &p.beta1}, ops::Keep::kOutputs, fused ? p.drop : RowDrop{});
    t.seed(n.sum, dsum);
    t.seed(n.out, dout);
    t.backward();
    std::vector<std::vector<float>> all{values(n.sum.value),   values(n.out.value),   values(t.grad(x)),
                                        values(t.grad(delta)), values(p.gamma1.grad), values(p.beta1.grad)};
    t.reset();
    CHECK(rig.pool.live() == 0);
    return all;
  };
  const auto fused = run(true);
  CHECK(fused == run(false));
  int64_t dropped = 0;
  for (size_t i = 0; i < fused[3].size(); ++i) {  // a dropped element has no gradient
    dropped += fused[3][i] == 0;
    CHECK((fused[3][i] == 0 || fused[3][i] == fused[2][i] * p.drop.mask.scale));
  }
  CHECK(dropped > 0);
  CHECK(dropped < kTokens * kHidden / 2);
}

TEST_CASE("the norm behind a layer computes its bias gradient together with dL/dy, if that is the whole gradient") {
  TapeFixture rig;
  Block p(rig, 10);
  Tape& t = rig.tape;
  const Tensor dsum = rig.tensor({kTokens, kHidden}, 3), dout = rig.tensor({kTokens, kHidden}, 7);
  struct SavedPointers {
    Var y;
    bool* done;
    std::vector<float>* dy;
  };
  const auto norm = [&](Var x, const Var& y, const RowDrop& drop) {
    const ops::Normed n = ops::add_norm(t, x, &y, {&p.gamma1, &p.beta1}, ops::Keep::kOutputs, drop);
    t.seed(n.sum, dsum);
    t.seed(n.out, dout);
  };
  bool done = false;
  std::vector<float> dy;
  // Bias gradient of a layer over two microbatches; feed(x, y): the op that reads the layer's output y, besides x.
  const auto run = [&](auto feed, Pass pass) {
    p.out_b.grad_dirty = false;
    for (int i = 0; i < 2; ++i) {
      const Var x = t.input(rig.tensor({kTokens, kHidden}, 1), true);
      const Var y = ops::linear(t, t.input(rig.tensor({kTokens, kHidden}, 5), true), p.out, &p.out_b);
      t.record(SavedPointers{y, &done, &dy}, [](const SavedPointers& s, Backprop& bp) {
        *s.done = bp.bias_done(s.y);
        *s.dy = values(bp.grad(s.y));
      });
      feed(x, y);
      t.backward(0, pass);
      if (pass == Pass::kInput) t.run_deferred();
      t.reset();
    }
    return values(p.out_b.grad);
  };
  for (const RowDrop& drop : {RowDrop{}, p.drop}) {
    const auto alone = [&](Var x, const Var& y) { norm(x, y, drop); };
    const std::vector<float> made = run(alone, Pass::kFull);
    CHECK(done);
    CHECK(made == run(alone, Pass::kInput));
    CHECK_FALSE(done);
    for (int64_t c = 0; c < kHidden; ++c) {
      double sum = 0;
      for (int64_t r = 0; r < kTokens; ++r) sum += 2.0 * dy[static_cast<size_t>(r * kHidden + c)];
      CHECK(made[static_cast<size_t>(c)] == Approx(sum).epsilon(1e-5).margin(1e-5));
    }
  }
  // Another reader behind the norm has contributed to the gradient before: the layer sums the total itself.
  const auto two = [&](Var x, const Var& y) {
    norm(x, y, {});
    t.seed(ops::gelu(t, y), dsum);
  };
  const std::vector<float> whole = run(two, Pass::kFull);
  CHECK_FALSE(done);
  CHECK(whole == run(two, Pass::kInput));
  // A reader in front of it would contribute too late.
  CHECK_THROWS_WITH(run(
                        [&](Var x, const Var& y) {
                          t.seed(ops::gelu(t, y), dsum);
                          norm(x, y, {});
                        },
                        Pass::kFull),
                    Catch::Contains("is added to one whose sums are that of out_b already"));
  t.reset();
}

TEST_CASE("an upstream gradient in the gradient pool is not modified") {
  TapeFixture rig;
  Block p(rig, 10);
  Tape& t = rig.tape;
  const Tensor given = rig.tensor({kTokens, kHidden}, 3);
  const Tensor dsum = rig.pool.alloc({kTokens, kHidden}, DType::kF32),
               dout = rig.pool.alloc({kTokens, kHidden}, DType::kF32);
  std::memcpy(dsum.data, given.data, static_cast<size_t>(given.bytes()));
  std::memcpy(dout.data, given.data, static_cast<size_t>(given.bytes()));
  const Var x = t.input(rig.tensor({kTokens, kHidden}, 1), true),
            delta = t.input(rig.tensor({kTokens, kHidden}, 2), true);
  auto [s, n, codes] = ops::add_norm(t, x, &delta, {&p.gamma1, &p.beta1});
  t.seed(s, dsum);
  t.seed(n, dout);
  t.backward();
  CHECK(values(dsum) == values(given));
  CHECK(values(dout) == values(given));
  CHECK(values(t.grad(x)) != values(given));
  t.reset();
  CHECK(rig.pool.live() == 2);  // the caller's two
  rig.pool.free(dsum);
  rig.pool.free(dout);
  CHECK(rig.pool.live() == 0);
}

TEST_CASE("no gradient is computed where none is needed") {
  TapeFixture rig;
  Block block(rig, 10);
  const Var x = rig.tape.input(rig.tensor({kTokens, kHidden}, 1), false);
  CHECK(x.id == -1);
  for (Parameter* p : block.params()) p->grad_dirty = false;
  const Var y = block(rig.tape, x);
  rig.tape.seed(y, rig.tensor({kTokens, kHidden}, 4));
  rig.tape.backward();
  CHECK(rig.pool.live() == 0);  // before the reset: every gradient was consumed
  for (Parameter* p : block.params()) CHECK(p->grad_dirty);
  rig.tape.reset();
}

TEST_CASE("without recording the tape stays empty and the result is the same") {
  TapeFixture rig;
  Block block(rig, 10);
  const Tensor x = rig.tensor({kTokens, kHidden}, 1);
  const std::vector<float> recorded = values(block(rig.tape, rig.tape.input(x, true)).value);
  CHECK(rig.tape.size() > 0);
  rig.tape.reset();
  rig.tape.set_recording(false);
  const Var y = block(rig.tape, rig.tape.input(x, true));
  CHECK(rig.tape.size() == 0);
  CHECK(y.id == -1);
  CHECK(values(y.value) == recorded);
}

TEST_CASE("unit nodes replay in the order that gathered parameters need") {
  TapeFixture rig(null_backend());
  Block one(rig, 1), two(rig, 2);
  std::string log;
  Logger s0("0", &log), s1("1", &log);
  one.unit = &s0;
  two.unit = &s1;
  const Tensor x = rig.tensor({kTokens, kHidden}, 1), dy = rig.tensor({kTokens, kHidden}, 2);
  Tape& t = rig.tape;
  const auto pass = [&](Pass how, bool recompute) {
    log.clear();
    Var h = t.input(x, true);
    for (Block* b : {&one, &two})
      h = recompute ? ops::recompute(t, h, [b](Tape& tape, Var v) { return (*b)(tape, v); }) : (*b)(t, h);
    t.seed(h, dy);
    t.backward(0, how);
    if (how == Pass::kInput) {
      log += "| ";
      t.run_deferred();
    }
    t.reset();
  };
  pass(Pass::kFull, false);
  CHECK(log == "a0 r0 a1 r1 a1 r1 g1 a0 r0 g0 ");
  pass(Pass::kInput, false);  // a gradient is final after its weight rules
  CHECK(log == "a0 r0 a1 r1 a1 r1 a0 r0 | g1 g0 ");
  pass(Pass::kFull, true);  // forward; then for each block the forward again and the backward
  CHECK(log == "a0 r0 a1 r1 a1 r1 a1 r1 g1 a0 r0 a0 r0 g0 ");
}
