// 8. Checkpoints independent of the layout.
//
// A rank describes what it holds as ShardViews: a name, the logical shape, the split, a range. Saving writes rectangles
// of logical tensors; loading requests other rectangles. A step is committed by one rename, so a killed save leaves the
// last good one. Nothing here depends on the model.
#include <filesystem>
#include <mutex>

#include "checkpoint/checkpoint.h"
#include "docs/tour/show.h"
#include "launch/engine/engine.h"

using namespace gt;

namespace {

EngineOptions options() {
  EngineOptions o;
  o.model = {.layers = 2, .hidden = 32, .heads = 4, .ffn = 128, .vocab = 64, .seq = 16};
  return o;
}

// Runs `work(engine, mesh)` on every rank of a mesh.
void with_engines(MeshShape shape, const std::function<void(Engine&, const Mesh&)>& work) {
  tour::on_ranks(shape.world(), [&](GroupFactory& factory) {
    const Mesh mesh(shape, factory);
    Engine engine(options(), mesh, cpu_backend(), Stream{}, plan_memory(options(), shape, mesh.rank()));
    work(engine, mesh);
  });
}

}  // namespace

int main() {
  const tour::ScratchFolder scratch;
  const std::string& folder = scratch.path();
  const DeviceApi& host = *cpu_backend().device;

  with_engines({.pp = 2, .dp = 2, .tp = 2}, [&](Engine& engine, const Mesh& mesh) {
    engine.init_weights();
    TrainState state;
    state.step = 7, state.run_uuid = "00000000-0000-4000-8000-000000000001";
    const SaveReport r = save_checkpoint(folder, state, engine.checkpoint_views(), {}, {}, mesh, host, Stream{});
    if (mesh.rank() == 0) std::printf("8 ranks (tp 2, pp 2, dp 2) wrote %lld bytes\n", static_cast<long long>(r.bytes));
  });
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder + "/step-000000007"))
    std::printf("  %s\n", file.path().filename().c_str());

  // Another layout reads it, and must hold what it would have initialized itself: initial values depend on the seed
  // and the name of a tensor alone.
  for (const MeshShape shape : {MeshShape{}, MeshShape{.tp = 4}, MeshShape{.pp = 2, .dp = 3}}) {
    std::mutex guard;
    bool equal = true;
    int64_t step = 0;
    with_engines(shape, [&](Engine& engine, const Mesh& mesh) {
      const auto report = load_checkpoint(folder, "auto", engine.checkpoint_views(), mesh, host, Stream{});
      engine.adopt();
      std::vector<std::vector<float>> loaded;
      for (const ShardView& v : engine.model_views())
        loaded.emplace_back(v.data.as<float>(), v.data.as<float>() + v.data.numel());
      engine.init_weights();
      const std::lock_guard lock(guard);
      step = report->state.step;
      size_t k = 0;
      for (const ShardView& v : engine.model_views())
        equal = equal && std::equal(loaded[k].begin(), loaded[k].end(), v.data.as<float>()), ++k;
    });
    std::printf("read by tp %d, pp %d, dp %d: step %lld\n", shape.tp, shape.pp, shape.dp, static_cast<long long>(step));
    tour::claim(equal && step == 7, "every element is where it belongs, bitwise");
  }
}
