// bench_feed_forward: seconds of a forward and a backward pass of one feed-forward layer on the CPU, routed or dense,
// as blocks have it: gated SiLU, no biases; the backward gives the gradients of all weights and of the input. Prints
// the best of `repeats` rounds. Usage: bench_feed_forward TOKENS HIDDEN FFN [experts=0: dense] [top_k=2] [threads=2]
// [repeats=10] [type=f32|bf16]. tests/bench/routed_layer.py runs it beside transformers.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/open_stream.h"
#include "model/layers/feed_forward.h"
#include "parallel/comm/self_group.h"

using namespace gt;

namespace {

// Memory of the bench: tensors that live to its end, of normal random values.
class Values {
 public:
  explicit Values(const Backend& cpu) : cpu_(cpu) {}
  Tensor empty(Shape s, DType t) {
    return buffers_.emplace_back(s.numel() * size_of(t), Device{DeviceKind::kCpu, 0}, *cpu_.device).tensor(s, t);
  }
  Tensor normal(Shape s, DType t, float stddev) {
    const Tensor x = empty(s, DType::kF32);
    std::normal_distribution<float> draw(0, stddev);
    std::generate_n(x.as<float>(), x.numel(), [&] { return draw(random_); });
    if (t == DType::kF32) return x;
    const Tensor rounded = empty(s, t);
    cpu_.ops->cast({x, rounded}, {});
    return rounded;
  }

 private:
  const Backend& cpu_;
  std::mt19937 random_{1};
  std::vector<Buffer> buffers_;
};

// Parameters as in a step: packed copies of weights are stale, and the first gradient overwrites.
void renew(const std::vector<Parameter*>& parameters) {
  for (Parameter* p : parameters) p->version = fresh_version(), p->grad_dirty = false;
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, int standard) { return argc > i ? std::atoi(argv[i]) : standard; };
  const int64_t tokens = argument(1, 0), hidden = argument(2, 0), ffn = argument(3, 0);
  if (tokens < 1 || hidden < 8 || ffn < 1) {
    std::fprintf(stderr,
                 "usage: bench_feed_forward TOKENS HIDDEN FFN [experts] [top_k] [threads] [repeats] [f32|bf16]\n");
    return 64;
  }
  TransformerConfig c{.layers = 1, .hidden = hidden, .heads = 1, .ffn = ffn, .seq = tokens};
  c.norm = NormKind::kRms, c.activation = Activation::kSilu, c.gated = true, c.mlp_bias = false;
  c.moe.experts = argument(4, 0), c.moe.top_k = argument(5, 2);
  const int threads = argument(6, 2), repeats = argument(7, 10);
  Precision precision;
  precision.level = argc > 8 && std::strcmp(argv[8], "bf16") == 0 ? 2 : 0;

  const Backend& cpu = cpu_backend();
  const OpenStream stream(*cpu.device, 0, threads);
  SelfFactory alone;
  const Mesh mesh({}, alone);
  const ModelSpec spec = describe(c);
  const auto layer = make_feed_forward("layers.0.mlp", {.model = spec, .mesh = mesh, .precision = precision});
  Values values(cpu);
  for (Parameter* p : layer->parameters()) {
    p->value = values.normal(p->local_shape, p->dtype, 0.02f);
    p->grad = values.empty(p->local_shape, DType::kF32);
  }
  const Tensor x = values.normal({tokens, hidden}, precision.stream(), 1);
  const Tensor dy = values.normal({tokens, hidden}, precision.stream(), 1e-3f);
  const int64_t rows = tokens * std::max<int64_t>(1, c.moe.experts > 0 ? c.moe.top_k : 1);
  const int64_t bytes =
      (rows * (6 * ffn + 3 * hidden) + 8 * tokens * (hidden + c.moe.experts)) * 4 + (int64_t{1} << 20);
  Arena arena(Buffer(bytes, stream.device(), *cpu.device));
  Pool pool(Buffer(bytes, stream.device(), *cpu.device));
  Tape tape(arena, pool, *cpu.ops, stream);
  MicroBatch mb;
  mb.batch = 1, mb.seq = tokens, mb.train = true;

  double best = 1e30;
  for (int round = 0; round < repeats + 2; ++round) {
    renew(layer->parameters());
    const auto begin = std::chrono::steady_clock::now();
    const Var in = tape.input(x, true);
    tape.seed((*layer)(tape, {in, in}, mb, ops::Keep::kOutputs), dy);
    tape.backward(0, Pass::kFull);
    cpu.device->synchronize(stream);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    tape.reset();
    if (round >= 2) best = std::min(best, seconds);  // the first rounds take memory
  }
  std::printf("%.6f\n", best);
  return 0;
}
