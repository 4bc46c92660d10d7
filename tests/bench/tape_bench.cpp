// Overhead of the tape: forward and backward of 48 residual blocks on the null table, where every op returns
// immediately. Prints nanoseconds per node for the plain, split and recomputed backward; the target is at most 200 ns.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "autograd/ops.h"
#include "kernels/backend.h"

using namespace gt;

namespace {

struct NoUnit : ParamUnit {
  void acquire(Stream) override {}
  void release(Stream) override {}
  void grads_ready(Stream) override {}
};

constexpr int64_t kHidden = 8, kSeq = 4;

// A GPT-2 block as model/ records it on one rank.
struct Block {
  Parameter gamma1, beta1, qkv, qkv_b, out, out_b, gamma2, beta2, up, up_b, down, down_b;
  NoUnit unit;
  explicit Block(Tensor memory) {
    const auto make = [&](Parameter& p, Shape s) { p.value = p.grad = memory.slice(0, s.numel()).view(s); };
    for (Parameter* p : {&gamma1, &beta1, &out_b, &gamma2, &beta2, &down_b}) make(*p, {kHidden});
    make(qkv, {3 * kHidden, kHidden});
    make(qkv_b, {3 * kHidden});
    make(out, {kHidden, kHidden});
    make(up, {4 * kHidden, kHidden});
    make(up_b, {4 * kHidden});
    make(down, {kHidden, 4 * kHidden});
  }
  Var operator()(Tape& t, Var x, const MicroBatch& mb) {
    ops::enter(t, unit);
    const ops::Normed first = ops::add_norm(t, x, nullptr, {&gamma1, &beta1});
    const Var mixed = ops::self_attention(t, ops::linear(t, first.out, qkv, &qkv_b), {2, 2, kHidden / 2}, mb);
    const Var a = ops::linear(t, mixed, out, &out_b);
    const ops::Normed second = ops::add_norm(t, first.sum, &a, {&gamma2, &beta2});
    const Var y = ops::add(t, second.sum, ops::mlp(t, second.out, up, up_b, down, &down_b));
    ops::leave(t, unit);
    return y;
  }
};

enum class Mode { kPlain, kSplit, kRecompute };

size_t step(Tape& t, std::vector<std::unique_ptr<Block>>& blocks, Tensor x, Tensor dy, const MicroBatch& mb,
            Mode mode) {
  Var h = t.input(x, true);
  for (auto& block : blocks) {
    Block* b = block.get();
    h = mode == Mode::kRecompute ? ops::recompute(t, h, [b, &mb](Tape& tape, Var v) { return (*b)(tape, v, mb); })
                                 : (*b)(t, h, mb);
  }
  const size_t nodes = t.size();
  t.seed(h, dy);
  t.backward(0, mode == Mode::kSplit ? Pass::kInput : Pass::kFull);
  if (mode == Mode::kSplit) t.run_deferred();
  t.reset();
  return nodes;
}

}  // namespace

int main() {
  using Clock = std::chrono::steady_clock;
  const Backend& null = null_backend();
  const Stream stream{{null.kind, 0}, nullptr};
  Arena arena(Buffer(1 << 24, stream.device, *null.device));
  Pool pool(Buffer(1 << 24, stream.device, *null.device));
  Tape tape(arena, pool, *null.ops, stream);
  const Buffer memory(1 << 16, stream.device, *null.device);
  std::vector<std::unique_ptr<Block>> blocks;
  for (int i = 0; i < 48; ++i) blocks.push_back(std::make_unique<Block>(memory.tensor({1 << 14}, DType::kF32)));
  MicroBatch mb;
  mb.batch = 1;
  mb.seq = kSeq;
  const Tensor x = memory.tensor({kSeq, kHidden}, DType::kF32), dy = memory.tensor({kSeq, kHidden}, DType::kF32);
  const size_t nodes = step(tape, blocks, x, dy, mb, Mode::kPlain);
  const struct {
    Mode mode;
    const char* name;
  } modes[] = {{Mode::kPlain, "plain"}, {Mode::kSplit, "split"}, {Mode::kRecompute, "recomputed"}};
  for (const auto& [mode, name] : modes) {
    step(tape, blocks, x, dy, mb, mode);
    double best = 1e18;  // minimum of 200 rounds
    for (int round = 0; round < 200; ++round) {
      const auto begin = Clock::now();
      for (int i = 0; i < 10; ++i) step(tape, blocks, x, dy, mb, mode);
      best = std::min(best, std::chrono::duration<double, std::nano>(Clock::now() - begin).count() / 10);
    }
    std::printf("%-11s %zu nodes %8.2f us forward+backward %7.1f ns/node\n", name, nodes, best / 1e3,
                best / static_cast<double>(nodes));
  }
  return 0;
}
