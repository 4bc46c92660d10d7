// The tape on a block made of every rank-free op: three ways to run the backward, finite differences, who may overwrite
// whose gradient, and what is left behind.
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <span>

#include "autograd/ops.h"
#include "kernels/backend.h"
#include "kernels/core/rng.h"
#include "tests/support/test.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCountsNews = false;  // the sanitizer brings its own allocator
#else
constexpr bool kCountsNews = true;
#endif
static std::atomic<long> g_news{0};
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
__attribute__((noinline)) void* operator new(size_t n) {
  ++g_news;
  if (void* p = std::malloc(n)) return p;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* p) noexcept { std::free(p); }
__attribute__((noinline)) void operator delete(void* p, size_t) noexcept { std::free(p); }
#endif

using namespace gt;

namespace {

constexpr int64_t kBatch = 2, kSeq = 3, kTokens = kBatch * kSeq, kHidden = 8, kInner = 20, kHeads = 2;

MicroBatch micro_batch() {
  MicroBatch mb;
  mb.batch = kBatch;
  mb.seq = kSeq;
  return mb;
}

struct Logger : ParamScope {
  std::string name;
  std::string* log;
  Logger(std::string n, std::string* l) : name(std::move(n)), log(l) {}
  void acquire(Stream) override { *log += "a" + name + " "; }
  void release(Stream) override { *log += "r" + name + " "; }
  void grads_ready(Stream) override { *log += "g" + name + " "; }
};

// Memory, a tape and tensors on one backend; on the null one nothing is ever read.
struct Rig {
  const Backend& backend;
  Stream stream;
  Arena arena;
  Pool pool;
  Tape tape;
  std::deque<Buffer> buffers;
  explicit Rig(const Backend& b = cpu_backend(), size_t max_nodes = 8192)
      : backend(b),
        stream{{b.kind, 0}, nullptr},
        arena(Buffer(1 << 22, stream.device, *b.device)),
        pool(Buffer(1 << 22, stream.device, *b.device)),
        tape(arena, pool, *b.ops, stream, max_nodes) {}

  Tensor tensor(Shape s, uint64_t seed, float std = 1, DType dtype = DType::kF32) {
    buffers.emplace_back(s.numel() * size_of(dtype), stream.device, *backend.device);
    const Tensor t = buffers.back().tensor(s, dtype);
    if (backend.kind == DeviceKind::kCpu && dtype == DType::kF32)
      philox_normals(stream_key(seed, "test/tape"), 0, s.numel(), std, t.as<float>());
    return t;
  }
};

std::vector<float> values(const Tensor& t) { return {t.as<float>(), t.as<float>() + t.numel()}; }

double dot(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.numel(); ++i) sum += double{a.as<float>()[i]} * b.as<float>()[i];
  return sum;
}

// Every op that owns a rule, with x used twice. In-place ops work on tensors made inside, so the block may be
// recomputed.
struct Block {
  Parameter in, pos, gamma1, beta1, qkv, qkv_b, out, out_b, gamma2, beta2, up, up_b, down, down_b, side;
  ParamScope* scope = nullptr;

  Block(Rig& rig, uint64_t seed) {
    const auto make = [&](Parameter& p, const char* name, Shape s, float std) {
      p.name = name;
      p.full_shape = p.local_shape = s;
      p.value = rig.tensor(s, ++seed, std);
      p.grad = rig.tensor(s, ++seed, std);  // not zero: the first writer overwrites
      p.version = 1;
    };
    make(in, "in", {kHidden, kHidden}, 0.4f);
    make(pos, "pos", {kSeq + 1, kHidden}, 0.5f);  // one row more than the sequence: its gradient is 0
    make(gamma1, "gamma1", {kHidden}, 1);
    make(beta1, "beta1", {kHidden}, 0.3f);
    make(qkv, "qkv", {3 * kHidden, kHidden}, 0.4f);
    make(qkv_b, "qkv_b", {3 * kHidden}, 0.3f);
    make(out, "out", {kHidden, kHidden}, 0.4f);
    make(out_b, "out_b", {kHidden}, 0.3f);
    make(gamma2, "gamma2", {kHidden}, 1);
    make(beta2, "beta2", {kHidden}, 0.3f);
    make(up, "up", {kInner, kHidden}, 0.3f);
    make(up_b, "up_b", {kInner}, 0.3f);
    make(down, "down", {kHidden, kInner}, 0.3f);
    make(down_b, "down_b", {kHidden}, 0.3f);
    make(side, "side", {kHidden, kHidden}, 0.3f);
  }
  std::vector<Parameter*> params() {
    return {&in, &pos, &gamma1, &beta1, &qkv, &qkv_b, &out, &out_b, &gamma2, &beta2, &up, &up_b, &down, &down_b, &side};
  }

  Var operator()(Tape& t, Var x) {
    if (scope) ops::enter(t, *scope);
    const Var h = ops::add_position(t, ops::linear(t, x, in), pos, kSeq);
    auto [s1, n1] = ops::add_norm(t, h, nullptr, gamma1, beta1);
    Var a =
        ops::causal_attention(t, ops::linear(t, n1, qkv, &qkv_b), {kHeads, kHeads, kHidden / kHeads}, micro_batch());
    a = ops::add_bias(t, ops::linear(t, a, out), out_b);
    auto [s2, n2] = ops::add_norm(t, s1, &a, gamma2, beta2);
    const Var m = ops::mlp(t, n2, up, up_b, down, &down_b);
    const Var g = ops::gelu(t, ops::linear(t, m, side));
    const Var y = ops::add(t, ops::add(t, s2, g), x);
    if (scope) ops::leave(t, *scope);
    return y;
  }
};

enum class How { kPlain, kSplit, kRecompute, kRecomputeSplit };

struct Outcome {
  std::vector<float> y, dx;
  std::vector<std::vector<float>> grads;
  int64_t activation_peak = 0;
  friend bool operator==(const Outcome& a, const Outcome& b) {
    return a.y == b.y && a.dx == b.dx && a.grads == b.grads;
  }
};

Outcome run(Rig& rig, std::vector<Block*> blocks, std::span<const Tensor> xs, Tensor dy, How how) {
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

TEST_CASE("plain, split and recomputed backward agree bit for bit over several microbatches") {
  Rig rig, fresh;
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
}

TEST_CASE("gradients of microbatches accumulate to the sum of each alone") {
  Rig rig;
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
  Rig rig;
  Block block(rig, 10);
  const Tensor x = rig.tensor({kTokens, kHidden}, 1), dy = rig.tensor({kTokens, kHidden}, 4);
  const Outcome plain = run(rig, {&block}, {&x, 1}, dy, How::kPlain);
  const auto objective = [&] {
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

TEST_CASE("an operand used twice by one add gets twice the gradient and the seed stays the caller's") {
  Rig rig;
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

TEST_CASE("a slot that shares its gradient never sees it overwritten by the other owner") {
  Rig rig;
  Block p(rig, 10);
  Tape& t = rig.tape;
  for (Parameter* q : p.params()) q->grad_dirty = false;
  const Tensor dy = rig.tensor({kTokens, kHidden}, 3);
  const std::vector<float> seed = values(dy);
  const Var x = t.input(rig.tensor({kTokens, kHidden}, 1), true), w = t.input(rig.tensor({kTokens, kHidden}, 2), true);
  const Var delta = t.input(rig.tensor({kTokens, kHidden}, 5), true),
            side = t.input(rig.tensor({kTokens, kHidden}, 6), true);

  SECTION("a norm whose sum shares its gradient with another addend") {
    auto [s, n] = ops::add_norm(t, x, &delta, p.gamma1, p.beta1);
    t.seed(ops::add(t, ops::add(t, s, w), ops::linear(t, n, p.in)), dy);
    t.backward();
    CHECK(values(t.grad(w)) == seed);
    CHECK(values(t.grad(x)) == values(t.grad(delta)));
    CHECK(values(t.grad(x)) != seed);
  }
  SECTION("addends of a residual add that other ops accumulate into") {
    const Var y = ops::add(t, x, w);  // the residual of a stage end
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
    auto [s, n] = ops::add_norm(t, x, &delta, p.gamma1, p.beta1);
    const Var y = ops::add(t, ops::add(t, s, n), s);  // s: 2 dy and the norm's share; n: dy
    t.seed(y, dy);
    t.backward();
    double sum_x = 0, sum_seed = 0;  // a layer norm passes no mean on: rows of dx sum to rows of 2 dy
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

TEST_CASE("a seed that lives in the gradient pool stays the caller's") {
  Rig rig;
  Block p(rig, 10);
  Tape& t = rig.tape;
  const Tensor given = rig.tensor({kTokens, kHidden}, 3);
  const Tensor dsum = rig.pool.alloc({kTokens, kHidden}, DType::kF32),
               dout = rig.pool.alloc({kTokens, kHidden}, DType::kF32);
  std::memcpy(dsum.data, given.data, static_cast<size_t>(given.bytes()));
  std::memcpy(dout.data, given.data, static_cast<size_t>(given.bytes()));
  const Var x = t.input(rig.tensor({kTokens, kHidden}, 1), true),
            delta = t.input(rig.tensor({kTokens, kHidden}, 2), true);
  auto [s, n] = ops::add_norm(t, x, &delta, p.gamma1, p.beta1);
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

TEST_CASE("no gradient is made for what does not want one") {
  Rig rig;
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
  Rig rig;
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

TEST_CASE("scope nodes replay in the order that gathered parameters need") {
  Rig rig(null_backend());
  Block one(rig, 1), two(rig, 2);
  std::string log;
  Logger s0("0", &log), s1("1", &log);
  one.scope = &s0;
  two.scope = &s1;
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
  pass(Pass::kInput, false);  // a gradient is final when its weight side is
  CHECK(log == "a0 r0 a1 r1 a1 r1 a0 r0 | g1 g0 ");
  pass(Pass::kFull, true);  // forward; then for each block forward again and backward
  CHECK(log == "a0 r0 a1 r1 a1 r1 a1 r1 g1 a0 r0 a0 r0 g0 ");
}

TEST_CASE("a warm forward and backward allocates nothing on the heap") {
  if (!kCountsNews) return;
  Rig rig(null_backend());
  std::vector<std::unique_ptr<Block>> blocks;
  for (int i = 0; i < 12; ++i) blocks.push_back(std::make_unique<Block>(rig, 1));
  const Tensor x = rig.tensor({kTokens, kHidden}, 1), dy = rig.tensor({kTokens, kHidden}, 2);
  Tape& t = rig.tape;
  const auto step = [&](How how) {
    const bool split = how == How::kSplit || how == How::kRecomputeSplit;
    Var h = t.input(x, true);
    for (auto& block : blocks) {
      Block* b = block.get();
      h = how >= How::kRecompute ? ops::recompute(t, h, [b](Tape& tape, Var v) { return (*b)(tape, v); }) : (*b)(t, h);
    }
    t.seed(h, dy);
    t.backward(0, split ? Pass::kInput : Pass::kFull);
    if (split) t.run_deferred();
    t.reset();
  };
  for (How how : {How::kPlain, How::kSplit, How::kRecompute, How::kRecomputeSplit}) {
    step(how);
    const long before = g_news;
    for (int i = 0; i < 5; ++i) step(how);
    INFO("mode " << static_cast<int>(how));
    CHECK(g_news - before == 0);
  }
}

TEST_CASE("a full tape and a tape without gradient slots say so") {
  Rig rig(null_backend(), 4);
  const Tensor x = rig.tensor({4, 4}, 1);
  SECTION("nodes") {
    // Scope nodes make no outputs, so the nodes run out first.
    std::string log;
    Logger scope("0", &log);
    for (int i = 0; i < 4; ++i) ops::enter(rig.tape, scope);
    CHECK(rig.tape.size() == 4);
    CHECK_THROWS_WITH(ops::enter(rig.tape, scope), Catch::Contains("the tape is full at 4 nodes"));
  }
  SECTION("slots") {
    for (int i = 0; i < 4; ++i) rig.tape.input(x, true);
    CHECK_THROWS_WITH(rig.tape.input(x, true), Catch::Contains("no gradient slot left"));
    CHECK_NOTHROW(rig.tape.input(x, false));  // needs none
  }
  rig.tape.reset();  // and it is usable again
  CHECK_NOTHROW(ops::gelu(rig.tape, rig.tape.input(x, true)));
}

TEST_CASE("a too small arena or gradient pool names what is missing") {
  const Backend& b = null_backend();
  const Stream stream{{b.kind, 0}, nullptr};
  Arena arena(Buffer(1024, stream.device, *b.device));
  Pool pool(Buffer(256, stream.device, *b.device));
  Tape t(arena, pool, *b.ops, stream);
  Rig rig(b);
  const Tensor x = rig.tensor({8, 8}, 1);
  const Var in = t.input(x, true), y = ops::gelu(t, ops::gelu(t, in));
  t.seed(y, x);
  t.backward(1);
  CHECK_THROWS_WITH(t.backward(), Catch::Contains("gradient pool of 256 bytes is full"));
  t.reset();
  const Tensor big = rig.tensor({32, 32}, 1);
  CHECK_THROWS_WITH(ops::gelu(t, t.input(big, true)), Catch::Contains("arena needs 4096 bytes of 1024"));
}
