// Checkpoints of a model with experts: parameters of experts are held by the ranks of their ep coordinate alone and
// sharded over expert_dp, dense ones by all ranks and sharded over dp. A checkpoint fits any size of the axis.
#include <array>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>

#include "parallel/zero/param_store.h"
#include "tests/checkpoint/support.h"
#include "tests/support/test.h"

using namespace gt;
using namespace gt::ckpt;

namespace {

constexpr int kExperts = 4;

// A dense matrix, and the experts of this rank's ep coordinate.
struct ExpertRank {
  std::deque<Parameter> params;
  std::unique_ptr<ParamStore> store;
  std::vector<Buffer> moments;

  Parameter& add(const std::string& name, int tp) {
    Parameter& p = params.emplace_back();
    p.name = name;
    p.full_shape = p.local_shape = {12, 7};
    p.shard = ShardSpec::split(0);
    p.local_shape.dim[0] /= tp;
    return p;
  }

  ExpertRank(const Mesh& mesh, int zero) {
    const int tp = mesh.size(Axis::kTp), own = kExperts / mesh.size(Axis::kEp), first = own * mesh.coord(Axis::kEp);
    UnitSpec experts{.name = "experts", .index = 1, .domain = Axis::kExpertDp};
    for (int e = first; e < first + own; ++e) experts.params.push_back(&add(cat("experts.", e, ".weight"), tp));
    std::vector<UnitSpec> units{{.name = "dense", .params = {&add("dense.weight", tp)}}, experts};
    store = std::make_unique<ParamStore>(units, 2, ZeroOptions{.stage = zero, .persist_numel = 0}, mesh, cpu_backend(),
                                         Stream{});
    store->init(1, 1);
    for (int k = 0; k < store->num_units(); ++k)
      moments.emplace_back(store->state_elements(k) * 4, Device{}, *cpu_backend().device);
  }

  std::vector<ShardView> views() const {
    std::vector<ShardView> out = store->value_views();
    std::vector<Tensor> flat;
    for (const Buffer& b : moments) flat.push_back(b.tensor({b.bytes() / 4}, DType::kF32));
    store->append_views("optim/exp_avg", flat, out);
    return out;
  }

  // Calls f(expected, element) for every element of every view.
  template <class F>
  void each(F f) const {
    for (const ShardView& v : views())
      for (int64_t i = 0; i < v.data.numel(); ++i)
        f(value_of(v.name, logical_offset(v, v.begin + i)), v.data.as<float>()[i]);
  }
};

void save_experts(const std::string& dir, const Layout& l) {
  for (const std::string& error : run_ranks(l, [&](int, const Mesh& mesh) {
         const ExpertRank rank(mesh, l.zero);
         rank.each([](float expected, float& element) { element = expected; });
         save_checkpoint(dir, some_state(1), rank.views(), {}, {.zero_stage = l.zero}, mesh, host_device(), {});
       }))
    REQUIRE(error == "");
}

// Elements that differ after a load.
int64_t wrong_after_load(const std::string& dir, const Layout& l) {
  int64_t wrong = 0;
  std::mutex lock;
  for (const std::string& error : run_ranks(l, [&](int, const Mesh& mesh) {
         const ExpertRank rank(mesh, l.zero);
         rank.each([](float, float& element) { element = std::numeric_limits<float>::quiet_NaN(); });
         load_checkpoint(dir, "auto", rank.views(), mesh, host_device(), {});
         int64_t here = 0;
         rank.each([&](float expected, float element) { here += expected != element; });
         const std::lock_guard guard(lock);
         wrong += here;
       }))
    CHECK(error == "");
  return wrong;
}

}  // namespace

TEST_CASE("a checkpoint of experts fits any ep at any ZeRO stage") {
  std::vector<Layout> layouts;
  for (const int zero : {0, 1, 3})
    for (const auto& [dp, ep, tp] : {std::array{1, 1, 1}, {2, 2, 1}, {2, 1, 2}, {4, 2, 1}, {4, 4, 1}, {4, 2, 2}})
      layouts.push_back({.tp = tp, .dp = dp, .zero = zero, .ep = ep});
  for (const Layout& saved : {layouts[0], layouts[1], layouts[5], layouts[9], layouts[15]}) {
    const TempDir dir;
    save_experts(dir.path, saved);
    for (const Layout& loaded : layouts) {
      INFO("saved by tp " << saved.tp << " dp " << saved.dp << " ep " << saved.ep << " zero " << saved.zero
                          << ", loaded by tp " << loaded.tp << " dp " << loaded.dp << " ep " << loaded.ep << " zero "
                          << loaded.zero);
      CHECK(wrong_after_load(dir.path, loaded) == 0);
    }
  }
}
