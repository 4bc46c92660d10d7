// A block of RMSNorm, per-head norms, rotary positions and a gated activation on the tape. Every way to run the
// backward is bitwise identical, and gradients match finite differences.
#include <cmath>

#include "kernels/core/rope.h"
#include "tests/autograd/tape_fixture.h"
#include "tests/support/test.h"

using namespace gt;
using namespace gt::rig;

namespace {

constexpr ops::AttentionShape kShape{4, 2, 4};
constexpr int64_t kWide = 16, kPacked = (4 + 2 * 2) * 4, kFfn = 12;

struct Llama {
  Parameter norm1, qkv, qk_norm, out, norm2, up, down;
  Tensor table;
  ops::Keep keep = ops::Keep::kOutputs;
  Activation kind = Activation::kSilu;

  explicit Llama(TapeFixture& rig) : table(rig.tensor({kSeq, kShape.head_dim}, 0)) {
    uint64_t seed = 70;
    const auto make = [&](Parameter& p, const char* name, Shape s, float std) {
      p.name = name;
      p.full_shape = p.local_shape = s;
      p.value = rig.tensor(s, ++seed, std);
      p.grad = rig.tensor(s, ++seed, std);  // not zero: the first writer overwrites
      p.version = fresh_version();
    };
    make(norm1, "norm1", {kWide}, 1), make(norm2, "norm2", {kWide}, 1);
    make(qkv, "qkv", {kPacked, kWide}, 0.4f), make(out, "out", {kWide, kWide}, 0.4f);
    make(qk_norm, "qk_norm", {2 * kShape.head_dim}, 1);
    make(up, "up", {2 * kFfn, kWide}, 0.3f), make(down, "down", {kWide, kFfn}, 0.3f);
    fill_rope_table(rope_inverse_frequencies(kShape.head_dim, 1e4), 1, kSeq, table.as<float>());
  }
  std::vector<Parameter*> params() { return {&norm1, &qkv, &qk_norm, &out, &norm2, &up, &down}; }

  Var operator()(Tape& t, Var x) {
    const ops::NormWeights first{&norm1, nullptr, NormKind::kRms, 1e-6f};
    const ops::NormWeights second{&norm2, nullptr, NormKind::kRms, 1e-6f, 1};
    const ops::Normed n1 = ops::add_norm(t, x, nullptr, first, keep);
    const Var packed = ops::linear(t, n1.out, qkv);
    ops::discard(t, n1, first, keep);
    const Var normed = ops::qk_norm(t, packed, kShape, qk_norm, 1e-6f);
    const Var turned = ops::rope(t, normed, kShape, table, micro_batch());
    const Var a = ops::linear(t, ops::self_attention(t, turned, kShape, micro_batch()), out);
    const ops::Normed n2 = ops::add_norm(t, n1.sum, &a, second, keep);
    const ops::Activated act = ops::activate(t, ops::linear(t, n2.out, up), kind, true, keep);
    ops::discard(t, n2, second, keep);
    const Var m = ops::linear(t, act.out, down);
    ops::discard(t, act, keep);
    return ops::add(t, n2.sum, m);
  }
};

struct Outcome {
  std::vector<float> y, dx;
  std::vector<std::vector<float>> grads;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome run(TapeFixture& rig, Llama& model, Tensor x, Tensor dy, How how) {
  const bool split = how == How::kSplit || how == How::kRecomputeSplit;
  Tape& t = rig.tape;
  for (Parameter* p : model.params()) p->grad_dirty = false;
  Outcome out;
  const Var in = t.input(x, true);
  const Var y = how >= How::kRecompute
                    ? ops::recompute(t, in, [m = &model](Tape& tape, Var v) { return (*m)(tape, v); })
                    : model(t, in);
  out.y = values(y.value);
  t.seed(y, dy);
  t.backward(0, split ? Pass::kInput : Pass::kFull);
  if (split) t.run_deferred();
  out.dx = values(t.grad(in));
  for (Parameter* p : model.params()) {
    CHECK(p->grad_dirty);
    out.grads.push_back(values(p->grad));
  }
  t.reset();
  CHECK(rig.pool.live() == 0);
  return out;
}

}  // namespace

TEST_CASE("a Llama block: plain, split, recomputed and rebuilt backwards are bitwise identical") {
  TapeFixture rig;
  Llama model(rig);
  const Tensor x = rig.tensor({kTokens, kWide}, 1), dy = rig.tensor({kTokens, kWide}, 2);
  const Outcome plain = run(rig, model, x, dy, How::kPlain);
  for (const ops::Keep keep : {ops::Keep::kOutputs, ops::Keep::kInputs})
    for (const How how : {How::kPlain, How::kSplit, How::kRecompute, How::kRecomputeSplit}) {
      model.keep = keep;
      INFO("keep " << static_cast<int>(keep) << " how " << static_cast<int>(how));
      CHECK(plain == run(rig, model, x, dy, how));
    }
}

TEST_CASE("a Llama block: gradients equal finite differences, with every gated activation") {
  for (const Activation kind :
       {Activation::kGelu, Activation::kSilu, Activation::kRelu2, Activation::kGeluErf, Activation::kTanh}) {
    TapeFixture rig;
    Llama model(rig);
    model.kind = kind;
    const Tensor x = rig.tensor({kTokens, kWide}, 1), dy = rig.tensor({kTokens, kWide}, 2);
    const Outcome at = run(rig, model, x, dy, How::kPlain);
    const auto objective = [&] {
      rig.tape.set_recording(false);
      const Var y = model(rig.tape, rig.tape.input(x, false));
      rig.tape.set_recording(true);
      double sum = 0;
      for (int64_t i = 0; i < y.value.numel(); ++i) sum += double{y.value.as<float>()[i]} * dy.as<float>()[i];
      rig.tape.reset();
      for (Parameter* p : model.params()) p->version = fresh_version();
      return sum;
    };
    const auto expect = [&](const std::string& name, const Tensor& value, const std::vector<float>& grad) {
      const std::vector<float> before = values(value), along = values(rig.tensor(value.shape, 99));
      double measured = 0, predicted = 0, norm = 0;
      for (const double step : {4e-3, -4e-3}) {
        for (size_t i = 0; i < along.size(); ++i)
          value.as<float>()[i] = before[i] + static_cast<float>(step) * along[i];
        for (Parameter* p : model.params()) p->version = fresh_version();
        measured += objective() / (2 * step);
      }
      std::copy(before.begin(), before.end(), value.as<float>());
      for (size_t i = 0; i < along.size(); ++i) predicted += double{grad[i]} * along[i], norm += std::pow(grad[i], 2);
      INFO(name << " predicted " << predicted << " measured " << measured);
      CHECK(norm > 0);
      CHECK(std::abs(predicted - measured) <= 1e-2 * std::sqrt(norm));
    };
    expect("x", x, at.dx);
    for (size_t i = 0; i < model.params().size(); ++i)
      expect(model.params()[i]->name, model.params()[i]->value, at.grads[i]);
  }
}
