// 4. A model on one rank.
//
// An Engine owns what a rank needs for a step: stages, parameters, optimizer, pipeline executor. plan_memory() runs a
// step on the null backend first and returns how many bytes each buffer takes; the engine allocates exactly those,
// once.
#include "docs/tour/show.h"
#include "launch/engine/engine.h"
#include "parallel/comm/self_group.h"

using namespace gt;

int main() {
  EngineOptions o;
  o.model = {.layers = 2, .hidden = 32, .heads = 4, .ffn = 128, .vocab = 64, .seq = 16};  // a GPT-2
  o.micro_batch = 4, o.microbatches = 2;
  o.evaluates = false;  // no memory for it
  o.lr = {.type = "constant", .peak = 3e-3};

  SelfFactory alone;
  const Mesh mesh({}, alone);
  const EnginePlan plan = plan_memory(o, mesh.shape(), 0);
  std::printf("planned: %.0f kB weights, %.0f kB gradients, %.0f kB optimizer, %.0f kB activations\n",
              plan.memory.weights / 1e3, plan.memory.gradients / 1e3, plan.memory.optimizer / 1e3,
              plan.memory.activations / 1e3);
  Engine engine(o, mesh, cpu_backend(), Stream{}, plan);
  engine.init_weights();

  // Sequences that count upwards from anywhere: the next token is the last one plus one.
  tour::Host host;
  const Tensor tokens = host.tensor({8, 16}, DType::kI32), targets = host.tensor({8, 16}, DType::kI32);
  double first = 0, last = 0;
  for (int step = 1; step <= 60; ++step) {
    for (int32_t s = 0; s < 8; ++s)
      for (int32_t i = 0; i < 16; ++i) {
        tokens.as<int32_t>()[s * 16 + i] = (step * 13 + s * 7 + i) % 64;
        targets.as<int32_t>()[s * 16 + i] = (step * 13 + s * 7 + i + 1) % 64;
      }
    std::vector<MicroBatch> batch(2);
    for (int k = 0; k < 2; ++k) {
      batch[k].batch = 4, batch[k].seq = 16, batch[k].first_sample = step * 8 + k * 4;
      batch[k].tokens = tokens.slice(k * 4, 4), batch[k].targets = targets.slice(k * 4, 4);
    }
    const StepResult r = engine.step(batch, 8 * 16);
    if (step == 1) first = r.loss;
    last = r.loss;
    if (step == 1 || step % 20 == 0)
      std::printf("step %2d  loss %.4f  gradient norm %.3f\n", step, r.loss, r.grad_norm);
  }
  tour::claim(std::abs(first - std::log(64)) < 0.2, "an untrained model guesses: loss ln 64");
  tour::claim(last < first / 2, "and learns to count");
  const MemoryReport used = engine.measured_plan().memory;
  std::printf("planned %lld bytes, used %lld\n", static_cast<long long>(plan.memory.total()),
              static_cast<long long>(used.total()));
  tour::claim(used.total() == plan.memory.total(), "the step used the planned bytes, exactly");
}
