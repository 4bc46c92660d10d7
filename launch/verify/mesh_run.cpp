#include "launch/verify/mesh_run.h"

#include <limits>
#include <mutex>
#include <thread>

#include "kernels/core/rng.h"
#include "parallel/comm/thread_group.h"

namespace gt {
namespace {

std::string base_name(const std::string& view) { return view.substr(view.find('/') + 1); }

// Copies what this rank is the one to save into the logical tensors.
void collect(const std::vector<ShardView>& views, float scale, Logical& out, std::mutex& mutex) {
  const std::lock_guard lock(mutex);
  for (const ShardView& v : views) {
    if (!v.save) continue;
    std::vector<float>& full = out[base_name(v.name)];
    full.resize(static_cast<size_t>(v.full.numel()), std::numeric_limits<float>::quiet_NaN());
    for (int64_t i = 0; i < v.data.numel(); ++i)
      if (const int64_t at = logical_offset(v, v.begin + i); at >= 0)
        full[static_cast<size_t>(at)] = v.data.as<float>()[i] * scale;
  }
}

void load(const std::vector<ShardView>& views, const Logical& from) {
  for (const ShardView& v : views)
    for (int64_t i = 0; i < v.data.numel(); ++i) {
      const int64_t at = logical_offset(v, v.begin + i);
      v.data.as<float>()[i] = at < 0 ? 0.f : from.at(base_name(v.name))[static_cast<size_t>(at)];
    }
}

// The microbatches of one step and data-parallel rank: microbatch k takes ordinals base + (k * dp + i) * b ….
struct Batches {
  std::vector<std::vector<int32_t>> storage;
  std::vector<MicroBatch> list;
};
Batches make_batches(const MeshRun& run, int step, int dp_rank, int m) {
  Batches out;
  const int64_t b = run.engine.micro_batch, s = run.engine.model.seq;
  for (int k = 0; k < m; ++k) {
    std::vector<int32_t> tokens, targets;
    const int64_t first = step * run.global_batch + (int64_t{k} * run.mesh.dp + dp_rank) * b;
    for (int64_t j = 0; j < b; ++j) {
      const auto& x = run.samples[static_cast<size_t>((first + j) % static_cast<int64_t>(run.samples.size()))];
      tokens.insert(tokens.end(), x.begin(), x.begin() + s);
      targets.insert(targets.end(), x.begin() + 1, x.begin() + 1 + s);
    }
    MicroBatch mb;
    mb.batch = b;
    mb.seq = s;
    mb.first_sample = first;
    out.storage.push_back(std::move(tokens));
    mb.tokens = {reinterpret_cast<std::byte*>(out.storage.back().data()), {b, s}, DType::kI32, {}};
    out.storage.push_back(std::move(targets));
    mb.targets = {reinterpret_cast<std::byte*>(out.storage.back().data()), {b, s}, DType::kI32, {}};
    out.list.push_back(mb);
  }
  return out;
}

void run_rank(const MeshRun& run, EngineOptions options, GroupFactory& factory, MeshResult& result, std::mutex& mutex) {
  const Backend& cpu = cpu_backend();
  const Mesh mesh(run.mesh, factory);
  const Stream stream = cpu.device->open_stream(0, 1);
  {
    const EnginePlan plan = plan_memory(options, run.mesh, mesh.rank());
    Engine engine(options, mesh, cpu, stream, plan);
    engine.init_weights();
    if (run.weights != nullptr) {
      load(engine.store().value_views(), *run.weights);
      engine.store().publish();
    }
    for (int k = 0; k < run.steps; ++k) {
      Batches batches = make_batches(run, k, mesh.coord(Axis::kDp), options.microbatches);
      const StepResult r = engine.step(batches.list, run.global_batch * options.model.seq);
      if (mesh.rank() == 0) {
        result.losses.push_back(r.loss);
        result.norms.push_back(r.grad_norm);
      }
      if (k == 0)
        collect(engine.store().grad_views(), 1.f / static_cast<float>(options.microbatches * run.mesh.dp), result.grads,
                mutex);
    }
    collect(engine.store().value_views(), 1, result.weights, mutex);
    RankRun& mine = result.ranks[static_cast<size_t>(mesh.rank())];
    for (const ActionTime& t : engine.executor().timeline()) mine.computed.push_back(t.action);
    mine.slots = engine.executor().slots();
    mine.peak_live = engine.executor().peak_live();
    if (run.evaluate) {
      Batches batches = make_batches(run, run.steps, mesh.coord(Axis::kDp), options.microbatches);
      const double loss = engine.evaluate(batches.list);
      if (mesh.rank() == 0) result.eval_loss = loss;
    }
    const std::lock_guard lock(mutex);
    result.planned[static_cast<size_t>(mesh.rank())] = plan;
    result.measured[static_cast<size_t>(mesh.rank())] = engine.measured_plan();
  }
  cpu.device->close_stream(stream);
}

}  // namespace

MeshResult run_mesh(const MeshRun& run) {
  EngineOptions options = run.engine;
  options.microbatches = static_cast<int>(run.global_batch / (options.micro_batch * run.mesh.dp));
  MeshResult result;
  std::mutex mutex;
  const int world = run.mesh.world();
  result.ranks.resize(static_cast<size_t>(world));
  result.planned.resize(static_cast<size_t>(world));
  result.measured.resize(static_cast<size_t>(world));
  ThreadWorld ranks(world, std::chrono::seconds(60));
  std::vector<std::exception_ptr> errors(static_cast<size_t>(world));
  std::vector<std::thread> team;
  for (int r = 0; r < world; ++r)
    team.emplace_back([&, r] {
      try {
        auto factory = ranks.factory(r);
        run_rank(run, options, *factory, result, mutex);
      } catch (const std::exception& e) {
        errors[static_cast<size_t>(r)] = std::current_exception();
        ranks.abort(r, e.what());
      }
    });
  for (std::thread& t : team) t.join();
  for (const std::exception_ptr& e : errors)
    if (e) std::rethrow_exception(e);
  return result;
}

std::vector<std::vector<int32_t>> synthetic_samples(int count, int64_t seq, int64_t vocab, uint64_t seed) {
  std::vector<std::vector<int32_t>> out;
  const uint64_t key = stream_key(seed, "test/samples");
  for (int n = 0; n < count; ++n) {
    std::vector<int32_t> x;
    int64_t last = 1;
    for (int64_t k = 0; k <= seq; ++k) {
      const auto w = philox(key, static_cast<uint64_t>(k), static_cast<uint64_t>(n));
      last = w[0] % 4 != 0 ? (last * 7 + 3) % vocab : w[1] % vocab;  // mostly predictable
      x.push_back(static_cast<int32_t>(last));
    }
    out.push_back(std::move(x));
  }
  return out;
}

}  // namespace gt
