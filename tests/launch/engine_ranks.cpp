#include "tests/launch/engine_ranks.h"

#include <string>
#include <thread>

#include "kernels/core/open_stream.h"
#include "launch/tools/verify/mesh_run.h"
#include "parallel/comm/threads/thread_group.h"
#include "tests/support/test.h"

namespace gt {

EngineBatches::EngineBatches(const EngineOptions& o, int step, int dp_rank, int dp, int count) {
  const int64_t seq = o.model.seq;
  const auto samples = synthetic_samples(64, seq, o.model.vocab, 3);
  for (int k = 0; k < count; ++k) {
    std::vector<int32_t> tokens, targets;
    for (int64_t j = 0; j < o.micro_batch; ++j) {
      const auto& x = samples[static_cast<size_t>((step * 16 + (k * dp + dp_rank) * o.micro_batch + j) % 64)];
      tokens.insert(tokens.end(), x.begin(), x.begin() + seq);
      targets.insert(targets.end(), x.begin() + 1, x.begin() + 1 + seq);
      targets[targets.size() - 2] = -1;
    }
    MicroBatch mb;
    mb.batch = o.micro_batch;
    mb.seq = seq;
    const Shape s{o.micro_batch, seq};
    storage.push_back(std::move(tokens));
    mb.tokens = {reinterpret_cast<std::byte*>(storage.back().data()), s, DType::kI32, {}};
    storage.push_back(std::move(targets));
    mb.targets = {reinterpret_cast<std::byte*>(storage.back().data()), s, DType::kI32, {}};
    list.push_back(mb);
  }
}

StepResult EngineRank::step(int k, bool stop) {
  const EngineOptions& o = engine.options();
  EngineBatches b(o, k, mesh.coord(Axis::kDp), mesh.size(Axis::kDp), o.microbatches);
  return engine.step(b.list, targets(o.microbatches), {.stop = stop});
}

double EngineRank::evaluate(int k, int count) {
  EngineBatches b(engine.options(), k, mesh.coord(Axis::kDp), mesh.size(Axis::kDp), count);
  return engine.evaluate(b.list).sums.front();
}

int64_t EngineRank::targets(int count) const {
  return count * mesh.size(Axis::kDp) * engine.options().micro_batch * (engine.options().model.seq - 1);
}

std::vector<float> EngineRank::own_values() const {
  std::vector<float> out;
  for (const TensorRange& u : engine.store().ranges())
    out.insert(out.end(), u.value.as<float>(), u.value.as<float>() + u.value.numel());
  return out;
}

std::vector<float> EngineRank::state() const {
  std::vector<float> out;
  for (const ShardView& v : engine.checkpoint_views())
    if (v.save) out.insert(out.end(), v.data.as<float>(), v.data.as<float>() + v.data.numel());
  return out;
}

void on_engines(const EngineOptions& options, MeshShape shape, const std::function<void(EngineRank&)>& body,
                const WrapFactory& wrap) {
  ThreadWorld ranks(shape.world(), std::chrono::seconds(60));
  std::vector<std::string> errors(static_cast<size_t>(shape.world()));
  std::vector<std::thread> team;
  for (int r = 0; r < shape.world(); ++r)
    team.emplace_back([&, r] {
      try {
        const auto factory = ranks.factory(r);
        const auto wrapped = wrap ? wrap(*factory) : nullptr;
        const Mesh mesh(shape, wrapped ? *wrapped : *factory);
        const OpenStream stream(*cpu_backend().device, 0, 1);
        Engine engine(options, mesh, cpu_backend(), stream, plan_memory(options, shape, r));
        engine.init_weights();
        EngineRank rank{mesh, engine};
        body(rank);
      } catch (const std::exception& e) {
        errors[static_cast<size_t>(r)] = e.what();
        ranks.abort(r, e.what());
      }
    });
  for (std::thread& t : team) t.join();
  for (const std::string& e : errors) CHECK(e == "");
}

}  // namespace gt
