// Pipeline ranks as threads that train the toy network: shared by the executor's tests.
#pragma once
#include <cstring>
#include <mutex>
#include <thread>

#include "parallel/comm/self_group.h"
#include "parallel/comm/threads/thread_group.h"
#include "parallel/pipeline/partition.h"
#include "tests/parallel/toy_pipeline.h"

namespace gt::toy {

constexpr ExecutorMemory kGenerous{1 << 16, 1 << 17, 0};

// One rank: its stages and recorded events.
struct Rank {
  Rank(const PipelineSchedule& s, const Mesh& mesh, ExecutorMemory memory = kGenerous, unsigned jitter = 0,
       BoundaryOptions boundaries = {})
      : world(mesh.world()) {
    const std::vector<LayerCost> layers(kLayers, {"block", 1, 1});
    const std::vector<int> cut = partition("uniform", layers, s.stages);
    std::vector<PipelineStage*> local;
    for (int st = mesh.coord(Axis::kPp); st < s.stages; st += s.ranks) {
      stages.push_back(std::make_unique<ToyStage>(cut[static_cast<size_t>(st)], cut[static_cast<size_t>(st) + 1]));
      if (jitter != 0) stages.back()->set_jitter(jitter + static_cast<unsigned>(st));
      local.push_back(stages.back().get());
    }
    executor = std::make_unique<PipelineExecutor>(s, local, mesh, ops(), device(), Stream{}, memory, boundaries);
    losses.assign(static_cast<size_t>(s.microbatches), -1);
    order.reserve(1000);
    hooks.begin_backward = [this](int stage, int mb, bool last) { order.push_back({stage, mb, last ? 1 : 0}); };
    hooks.reduce_grads = [this](int stage) { order.push_back({stage, -1, 2}); };
    hooks.reduce_tied = [this] { order.push_back({-1, -1, 3}); };
  }
  void step(const Batches& b) {
    for (auto& s : stages)
      for (Weight& w : s->weights()) w.begin_step();
    order.clear();
    const Tensor out{
        reinterpret_cast<std::byte*>(losses.data()), {static_cast<int64_t>(losses.size())}, DType::kF64, {}};
    try {
      executor->run(b.list, out, hooks);
    } catch (const Error& e) {  // before freeing buffers that others may be reading
      world.abandon(e.what(), e.code());
      throw;
    }
  }
  struct Event {
    int stage, microbatch, what;
  };  // what: 0 weight pass, 1 the last one of the stage, 2 G, 3 T
  ProcessGroup& world;
  std::vector<std::unique_ptr<ToyStage>> stages;
  std::unique_ptr<PipelineExecutor> executor;
  std::vector<double> losses;
  std::vector<Event> order;
  GradHooks hooks;
};

// Everything a step computed, by layer name; compared bitwise.
struct Outcome {
  std::vector<std::vector<float>> grads = std::vector<std::vector<float>>(kLayers);
  std::vector<double> losses;
  void add(Rank& r, bool last) {
    for (auto& s : r.stages)
      for (Weight& w : s->weights()) grads[static_cast<size_t>(std::stoi(w.param.name.substr(5)))] = w.grad;
    if (last) losses = r.losses;
  }
  bool same_bits(const Outcome& o) const {
    if (losses.size() != o.losses.size() || std::memcmp(losses.data(), o.losses.data(), losses.size() * 8) != 0)
      return false;
    for (size_t i = 0; i < grads.size(); ++i)
      if (grads[i].size() != kHidden || std::memcmp(grads[i].data(), o.grads[i].data(), kHidden * 4) != 0) return false;
    return true;
  }
};

inline Outcome on_one_rank(int m, int step, bool vary = false) {
  SelfFactory factory;
  const Mesh mesh({}, factory);
  Rank r(make_schedule("1f1b", 1, 1, m), mesh, kGenerous, 0, {.dynamic_shapes = vary});
  r.step(Batches(m, step, vary));
  Outcome out;
  out.add(r, true);
  return out;
}

// Runs `body(rank, mesh)` on p threads; rethrows the first error.
template <class Body>
void on_ranks(int p, Body body) {
  ThreadWorld world(p, std::chrono::seconds(60));
  std::vector<std::thread> threads;
  std::string error;
  std::mutex guard;
  for (int r = 0; r < p; ++r)
    threads.emplace_back([&, r] {
      try {
        const auto factory = world.factory(r);
        const Mesh mesh({.pp = p}, *factory);
        body(r, mesh);
      } catch (const Error& e) {
        world.abort(r, e.what(), e.code());
        const std::lock_guard lock(guard);
        if (error.empty()) error = e.what();
      }
    });
  for (std::thread& t : threads) t.join();
  if (!error.empty()) throw Error(error);
}

}  // namespace gt::toy
