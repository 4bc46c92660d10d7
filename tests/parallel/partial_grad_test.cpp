// Parameters of class `partial`: each tp rank has a partial gradient, which the store sums over tp first.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <mutex>

#include "kernels/core/rng.h"
#include "parallel/zero/param_store.h"
#include "tests/parallel/comm_suite.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

constexpr int64_t kNorm = 9, kWide = 24, kBias = 7, kScale = 70;

// Two FSDP units. The first has a partial parameter, a split one, two adjacent partial ones and a replicated one; the
// second has partial parameters only.
struct Toy {
  std::deque<Parameter> params;
  std::vector<UnitSpec> units;
  Parameter* add(const char* name, int64_t n, ShardSpec shard, int tp) {
    Parameter& p = params.emplace_back();
    p.name = name;
    p.full_shape = p.local_shape = {n};
    p.shard = shard;
    if (shard.tp().splits()) p.local_shape.dim[0] /= tp;
    return &p;
  }
  explicit Toy(int tp) {
    const ShardSpec partial = ShardSpec::partial();
    units.push_back({"a",
                     {add("a.norm", kNorm, partial, tp), add("a.wide", kWide, ShardSpec::split(0), tp),
                      add("a.bias", kBias, partial, tp), add("a.scale", kScale, partial, tp),
                      add("a.same", kNorm, ShardSpec::replicate(), tp)},
                     0,
                     0});
    units.push_back({"b", {add("b.norm", kNorm, partial, tp)}, 0, 1});
  }
};

// Gradient of one element on rank (tp, dp): fractions whose sums depend on the order.
float part(const Parameter& p, int64_t i, int tp, int dp) {
  const bool same = !p.shard.tp().named();
  const uint64_t bits = splitmix64(fnv1a64(p.name) + static_cast<uint64_t>(i * 64 + (same ? 0 : tp * 8) + dp));
  return static_cast<float>(bits % 2001) / 997.f - 1.f;
}

void fill(Toy& toy, ParamStore& store, const Mesh& mesh) {
  store.begin_step();
  store.begin_backward(0, 0, true);
  for (auto unit = toy.units.rbegin(); unit != toy.units.rend(); ++unit) {
    for (Parameter* p : unit->params) {
      GT_CHECK(!grad_dst(*p).accumulate, "the first writer of a step must overwrite");
      for (int64_t i = 0; i < p->grad.numel(); ++i)
        p->grad.as<float>()[i] = part(*p, i, mesh.coord(Axis::kTp), mesh.coord(Axis::kDp));
    }
    store.unit(unit->name).grads_ready({});
  }
  store.reduce_grads(0);
  store.finish_reduction();
}

// Element i of p on tp rank `tp` after the reduction: over tp if partial, ((x0 + x1) + …), then over dp.
float expected(const Parameter& p, int64_t i, int tp, MeshShape shape) {
  float total = 0;
  for (int dp = 0; dp < shape.dp; ++dp) {
    const bool partial = p.shard == ShardSpec::partial();
    float sum = part(p, i, partial ? 0 : tp, dp);
    for (int other = 1; partial && other < shape.tp; ++other) sum += part(p, i, other, dp);
    total = dp == 0 ? sum : total + sum;
  }
  return total;
}

// Checks what this rank updates; returns the number of elements.
int64_t check_own(const Toy& toy, const ParamStore& store, const Mesh& mesh) {
  int64_t count = 0;
  for (const TensorRange& u : store.ranges())
    for (int64_t k = 0; k < u.grad.numel(); ++k, ++count) {
      const float* at = u.grad.as<float>() + k;
      const auto holds = [&](const Parameter& p) {
        return at >= p.grad.as<float>() && at < p.grad.as<float>() + p.grad.numel();
      };
      const auto p = std::find_if(toy.params.begin(), toy.params.end(), holds);
      if (p == toy.params.end()) continue;  // padding in between
      const int64_t i = at - p->grad.as<float>();
      const float value = expected(*p, i, mesh.coord(Axis::kTp), mesh.shape());
      GT_CHECK(*at == value, p->name, " element ", i, " on ", mesh.coordinates(), ": ", *at, " instead of ", value);
    }
  return count;
}

}  // namespace

TEST_CASE("partial gradients are summed over tp in rank order, then over dp, for any stage, bucket and overlap") {
  for (const MeshShape shape : {MeshShape{.tp = 2}, MeshShape{.tp = 4}, MeshShape{.dp = 2, .tp = 2},
                                MeshShape{.dp = 2, .tp = 4}, MeshShape{.dp = 4, .tp = 2}, MeshShape{.dp = 2}})
    for (int stage : {0, 1})
      for (int64_t bucket : {int64_t{1}, int64_t{1} << 30})
        for (bool overlap : {false, true}) {
          INFO("tp " << shape.tp << " dp " << shape.dp << " zero " << stage << " bucket " << bucket << " overlap "
                     << overlap);
          std::atomic<int64_t> count = 0;
          const auto errors = suite::run_threads(shape.world(), [&](GroupFactory& f) {
            const Mesh mesh(shape, f);
            Toy toy(shape.tp);
            ParamStore store(toy.units, 2, {stage, bucket, overlap}, mesh, cpu_backend(), {});
            // the second starts from the state left by the first
            for (int step = 0; step < 2; ++step) fill(toy, store, mesh);
            count += check_own(toy, store, mesh);
          });
          for (const std::string& e : errors) CHECK(e == "");
          int64_t local = 0;
          for (const Parameter& p : Toy(shape.tp).params) local += p.local_shape.numel();
          CHECK(count == local * shape.tp * (stage == 0 ? shape.dp : 1));
        }
}

TEST_CASE("the norm counts a partial parameter once") {
  for (const MeshShape shape : {MeshShape{.tp = 4}, MeshShape{.dp = 2, .tp = 2}, MeshShape{.dp = 2, .tp = 4}}) {
    double value = 0;
    for (const Parameter& p : Toy(shape.tp).params)
      for (int tp = 0; tp < (p.shard.tp().splits() ? shape.tp : 1); ++tp)
        for (int64_t i = 0; i < p.local_shape.numel(); ++i) value += std::pow(double{expected(p, i, tp, shape)}, 2);
    for (int stage : {0, 1}) {
      INFO("tp " << shape.tp << " dp " << shape.dp << " zero " << stage);
      std::mutex mutex;
      double total = 0;
      const auto errors = suite::run_threads(shape.world(), [&](GroupFactory& f) {
        const Mesh mesh(shape, f);
        Toy toy(shape.tp);
        ParamStore store(toy.units, 2, {stage, 1, true}, mesh, cpu_backend(), {});
        fill(toy, store, mesh);
        std::vector<double> norms(3);
        store.norm_squares({reinterpret_cast<std::byte*>(norms.data()), {3}, DType::kF64, {}});
        const std::lock_guard lock(mutex);
        total += norms[0] + norms[1];
      });
      for (const std::string& e : errors) CHECK(e == "");
      CHECK(total == Approx(value).epsilon(1e-12));
    }
  }
}

TEST_CASE("neighbours among partial parameters are summed in one collective, others are not touched") {
  const MeshShape shape{.tp = 4};
  const auto errors = suite::run_threads(shape.world(), [&](GroupFactory& f) {
    const Mesh mesh(shape, f);
    Toy toy(shape.tp);
    ParamStore store(toy.units, 2, {}, mesh, cpu_backend(), {});
    fill(toy, store, mesh);
    const CommCounters& n = mesh.group(Axis::kTp).counters();
    GT_CHECK(n.calls() == 3, n.calls(), " calls: two runs in the first unit, one in the second");
    GT_CHECK(n.total() == 2 * 3 * 4 * (2 * kNorm + kBias + kScale) / 4, "bytes ", n.total());
    GT_CHECK(n.total() == n.bytes(CommOp::kAllReduce), "all-reduces alone");
  });
  for (const std::string& e : errors) CHECK(e == "");
}
