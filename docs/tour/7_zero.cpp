// 7. Data parallelism with ZeRO.
//
// Every FSDP unit (a block, the embedding) has one flat buffer. Data-parallel ranks reduce-scatter its gradients, each
// updates its shard, and values are all-gathered. What a rank keeps of the three is the ZeRO stage (Rajbhandari et al.
// 2020); the result is the same, because all stages reduce over one flat layout.
#include <mutex>

#include "docs/tour/show.h"
#include "launch/engine/engine.h"

using namespace gt;

namespace {

struct Result {
  std::vector<double> losses;
  MemoryReport memory;  // of rank 0
};

Result train(int dp, int stage) {
  EngineOptions o;
  o.model = {.layers = 8, .hidden = 32, .heads = 4, .ffn = 128, .vocab = 64, .seq = 16};
  o.micro_batch = 2, o.microbatches = 8 / (2 * dp);
  o.lr = {.type = "constant", .peak = 1e-3};
  o.zero.stage = stage;
  o.zero.persist_numel = 0;               // stage 3 shards small units too
  o.zero.grad_reduce = GradReduce::kEnd;  // one reduction a step: bitwise equal stages
  Result out;
  std::mutex guard;
  tour::on_ranks(dp, [&](GroupFactory& factory) {
    const Mesh mesh({.dp = dp}, factory);
    Engine engine(o, mesh, cpu_backend(), Stream{}, plan_memory(o, mesh.shape(), mesh.rank()));
    engine.init_weights();
    tour::Host host;
    std::vector<double> losses;
    for (int step = 0; step < 5; ++step) {
      std::vector<MicroBatch> batch(static_cast<size_t>(o.microbatches));
      for (int k = 0; k < o.microbatches; ++k) {  // microbatch k of rank d holds samples (k dp + d) 2 …
        MicroBatch& mb = batch[static_cast<size_t>(k)];
        mb.batch = 2, mb.seq = 16, mb.first_sample = step * 8 + (k * dp + mesh.coord(Axis::kDp)) * 2;
        mb.tokens = host.tensor({2, 16}, DType::kI32), mb.targets = host.tensor({2, 16}, DType::kI32);
        for (int64_t i = 0; i < 32; ++i) {
          mb.tokens.as<int32_t>()[i] = static_cast<int32_t>((mb.first_sample * 5 + i) % 64);
          mb.targets.as<int32_t>()[i] = static_cast<int32_t>((mb.first_sample * 5 + i + 1) % 64);
        }
      }
      losses.push_back(engine.step(batch, 8 * 16).loss);
    }
    const std::lock_guard lock(guard);
    if (mesh.rank() == 0) out = {losses, engine.measured_plan().memory};
  });
  return out;
}

}  // namespace

int main() {
  const Result alone = train(1, 0);
  Result of_stage[4];
  std::printf("%-10s %10s %10s %10s   kB on a rank\n", "", "weights", "gradients", "optimizer");
  for (int stage = 0; stage < 4; ++stage) {
    of_stage[stage] = train(4, stage);
    const MemoryReport& m = of_stage[stage].memory;
    std::printf("dp 4 zero %d %9.1f %10.1f %10.1f\n", stage, m.weights / 1e3, m.gradients / 1e3, m.optimizer / 1e3);
  }
  for (const Result& r : of_stage)
    tour::claim(r.losses == of_stage[0].losses, "losses equal those of stage 0, bitwise");
  double worst = 0;
  for (size_t k = 0; k < 5; ++k) worst = std::max(worst, std::abs(of_stage[0].losses[k] - alone.losses[k]));
  std::printf("largest difference of a loss from one rank: %.1e\n", worst);
  tour::claim(worst < 1e-5, "four ranks train as one: sums in another order, nothing else");
  tour::claim(of_stage[1].memory.optimizer * 3 < of_stage[0].memory.optimizer, "stage 1 shards the optimizer");
  tour::claim(of_stage[3].memory.weights < of_stage[1].memory.weights, "stage 3 shards the values");
}
