// 5. Tensor parallelism.
//
// Ranks are threads here; processes and GPUs implement the same ProcessGroup. A column-parallel layer splits its
// outputs and needs no communication, a row-parallel layer splits its inputs and sums: together one all-reduce per MLP
// (Shoeybi et al. 2019). The layers below contain no collective; the split of their parameters selects them.
#include <mutex>

#include "docs/tour/show.h"
#include "model/layers/mlp.h"
#include "parallel/zero/shard_view.h"

using namespace gt;

namespace {

constexpr int64_t kTokens = 4;

// Fills this rank's part of a parameter from the logical tensor, whose element i is sin(i).
void fill(Parameter& p, const Mesh& mesh) {
  const ShardView v = view_of(p, mesh.all_coordinates());
  for (int64_t i = 0; i < p.value.numel(); ++i)
    p.value.as<float>()[i] = static_cast<float>(std::sin(static_cast<double>(logical_offset(v, i))));
}

// The output [tokens, hidden] of an MLP on tp ranks, of rank 0, and the all-reduces it took.
std::vector<float> mlp_output(int tp, int64_t* all_reduces) {
  const ModelSpec model = describe({.layers = 1, .hidden = 8, .heads = 2, .ffn = 32, .vocab = 16, .seq = 4});
  std::vector<float> out;
  std::mutex guard;
  tour::on_ranks(tp, [&](GroupFactory& factory) {
    const Mesh mesh({.tp = tp}, factory);
    tour::Host host;
    Mlp mlp("layers.0.mlp", {.model = model, .mesh = mesh});
    for (Parameter* p : mlp.parameters()) {
      p->value = host.tensor(p->local_shape), p->grad = host.tensor(p->local_shape), p->version = fresh_version();
      fill(*p, mesh);
    }
    Arena arena(Buffer(1 << 20, Device{}, *cpu_backend().device));
    Pool pool(Buffer(1 << 20, Device{}, *cpu_backend().device));
    Tape tape(arena, pool, *cpu_backend().ops, Stream{});
    const Tensor x = host.tensor({kTokens, 8});
    for (int64_t i = 0; i < x.numel(); ++i) x.as<float>()[i] = static_cast<float>(std::cos(static_cast<double>(i)));
    const Var y = mlp(tape, {.sum = {}, .out = tape.input(x, true)}, {.batch = 1, .seq = kTokens}, ops::Keep::kOutputs);
    const std::lock_guard lock(guard);
    if (mesh.rank() != 0) return;
    out.assign(y.value.as<float>(), y.value.as<float>() + y.value.numel());
    *all_reduces = mesh.group(Axis::kTp).counters().of(CommOp::kAllReduce).calls;
  });
  return out;
}

}  // namespace

int main() {
  int64_t calls = 0;
  const std::vector<float> whole = mlp_output(1, &calls);
  for (const int tp : {2, 4}) {
    const std::vector<float> split = mlp_output(tp, &calls);
    double worst = 0;
    for (size_t i = 0; i < whole.size(); ++i)
      worst = std::max(worst, static_cast<double>(std::abs(split[i] - whole[i])));
    std::printf("tp %d: largest difference from one rank %.1e, %lld all-reduces in the forward\n", tp, worst,
                static_cast<long long>(calls));
    tour::claim(worst < 1e-4, "the split layer computes what the whole one does");
    tour::claim(calls == 1, "with one all-reduce");
  }
}
