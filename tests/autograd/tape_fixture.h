// Shared by the tape tests: memory and a tape on one backend, and a block of every rank-free op.
#pragma once
#include <deque>
#include <string>
#include <vector>

#include "autograd/ops.h"
#include "kernels/backend.h"
#include "kernels/core/rng.h"

namespace gt::rig {

constexpr int64_t kBatch = 2, kSeq = 3, kTokens = kBatch * kSeq, kHidden = 8, kInner = 20, kHeads = 2;

inline MicroBatch micro_batch() {
  MicroBatch mb;
  mb.batch = kBatch;
  mb.seq = kSeq;
  return mb;
}

struct Logger : ParamUnit {
  std::string name;
  std::string* log;
  Logger(std::string n, std::string* l) : name(std::move(n)), log(l) {}
  void acquire(Stream) override { *log += "a" + name + " "; }
  void release(Stream) override { *log += "r" + name + " "; }
  void grads_ready(Stream) override { *log += "g" + name + " "; }
};

// Memory, a tape and tensors on one backend; nothing is read on the null backend.
struct TapeFixture {
  const Backend& backend;
  Stream stream;
  Arena arena;
  Pool pool;
  Tape tape;
  std::deque<Buffer> buffers;
  explicit TapeFixture(const Backend& b = cpu_backend(), size_t max_nodes = 8192)
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

inline std::vector<float> values(const Tensor& t) { return {t.as<float>(), t.as<float>() + t.numel()}; }

// Every op with a rule, with x used twice. In-place ops work on tensors made inside, so the block may be recomputed.
struct Block {
  Parameter in, pos, gamma1, beta1, qkv, qkv_b, out, out_b, gamma2, beta2, up, up_b, down, down_b, side;
  ParamUnit* unit = nullptr;
  ops::Keep keep = ops::Keep::kOutputs;
  RowDrop drop{drop_mask(11, 0.2), {.seq = kSeq}}, drop_mlp{drop_mask(12, 0.2), {.seq = kSeq}};
  HeadDrop drop_heads{drop_mask(13, 0.2), 0};

  Block(TapeFixture& rig, uint64_t seed) {
    const auto make = [&](Parameter& p, const char* name, Shape s, float std) {
      p.name = name;
      p.full_shape = p.local_shape = s;
      p.value = rig.tensor(s, ++seed, std);
      p.grad = rig.tensor(s, ++seed, std);  // not zero: the first writer overwrites
      p.version = fresh_version();          // the next rig reuses these addresses
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
    if (unit) ops::enter(t, *unit);
    const Var h = ops::add_position(t, ops::linear(t, x, in), pos, micro_batch().rows());
    const ops::Normed n1 = ops::add_norm(t, h, nullptr, {&gamma1, &beta1}, keep);
    const Var q = ops::linear(t, n1.out, qkv, &qkv_b);
    ops::discard(t, n1, {&gamma1, &beta1}, keep);
    Var a = ops::self_attention(t, q, {kHeads, kHeads, kHidden / kHeads}, micro_batch(), drop_heads);
    a = ops::add_bias(t, ops::linear(t, a, out), out_b);
    const ops::Normed n2 = ops::add_norm(t, n1.sum, &a, {&gamma2, &beta2}, keep, drop);
    const Var m = ops::dropout(t, ops::mlp(t, n2.out, up, up_b, down, &down_b, keep), drop_mlp);
    ops::discard(t, n2, {&gamma2, &beta2}, keep);
    const Var g = ops::gelu(t, ops::linear(t, m, side));
    const Var y = ops::add(t, ops::add(t, n2.sum, g), x);
    if (unit) ops::leave(t, *unit);
    return y;
  }
};

enum class How { kPlain, kSplit, kRecompute, kRecomputeSplit };

}  // namespace gt::rig
