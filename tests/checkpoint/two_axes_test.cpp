// Parameters that ep and tp split at once, in one dimension or in two: initialised, trained, saved and loaded like
// whole ones, under every layout and ZeRO stage.
#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>

#include "kernels/core/rng.h"
#include "kernels/ops.h"
#include "launch/engine/replica_check.h"
#include "optim/optimizer.h"
#include "parallel/zero/shard_copy.h"
#include "tests/checkpoint/support.h"
#include "tests/support/test.h"

using namespace gt;
using namespace gt::ckpt;

namespace {

constexpr int kSteps = 3, kSamples = 12;

struct Training {
  OptimizerOptions optimizer;
  DType dtype = DType::kF32;
  double tolerance = 0;  // 0: bitwise
};

struct TwoAxesRank {
  const Mesh& mesh;
  std::deque<Parameter> params;
  std::vector<UnitSpec> units;
  std::unique_ptr<ParamStore> store;
  std::unique_ptr<Optimizer> optimizer;
  double norm_squares = 0;  // that this rank counts, of all steps

  Parameter* add(const char* name, Shape full, ShardSpec shard, DType dtype) {
    Parameter& p = params.emplace_back();
    p.name = name;
    p.full_shape = p.local_shape = full;
    p.shard = shard;
    p.init = {Init::Kind::kNormal, 1};
    p.dtype = dtype;
    p.matrices = full.rank == 2 ? 1 : 0;
    for (int d = 0; d < full.rank; ++d)
      p.local_shape.dim[static_cast<size_t>(d)] = local_extent(shard, d, full[d], mesh.all_coordinates());
    return &p;
  }

  TwoAxesRank(const Mesh& m, int zero, const Training& training) : mesh(m) {
    const ShardSpec ep = ShardSpec::split(0, 1, Axis::kEp), rows = ShardSpec::split(0), columns = ShardSpec::split(1);
    const DType t = training.dtype;
    units.push_back({.name = "dense", .params = {add("dense.weight", {24, 7}, rows, t)}});
    units.push_back(
        {.name = "experts",
         .params = {add("experts.rows_columns", {12, 8}, ep.then(columns), t),
                    add("experts.rows", {24, 5}, ep.then(rows), t),
                    add("experts.rows_inside", {24, 3}, rows.then(ep), t),
                    add("experts.columns_rows", {8, 12}, rows.then(ShardSpec::split(1, 1, Axis::kEp)), t),
                    add("experts.gated", {12, 16, 5}, ep.then(ShardSpec::split(1, 2)), t),
                    add("experts.bias", {12}, ep, t), add("experts.norm", {12, 3}, ep.then(ShardSpec::partial()), t)},
         .index = 1,
         .domain = Axis::kExpertDp});
    store = std::make_unique<ParamStore>(units, 2,
                                         ZeroOptions{.stage = zero, .persist_numel = 0, .masters = t == DType::kF32},
                                         mesh, cpu_backend(), Stream{});
    optimizer = make_optimizer(training.optimizer, *store, mesh, cpu_backend(), {});
    store->init(5, 1);
  }

  // Integers, whose sums over samples and over TP ranks with partial sums are exact.
  float gradient(const Parameter& p, int64_t element, int step, const Domain& domain) const {
    const auto at = mesh.all_coordinates()[Axis::kTp];
    int sum = 0;
    for (int s = domain.rank; s < kSamples; s += domain.size)
      sum +=
          static_cast<int>(splitmix64(fnv1a64(p.name) + static_cast<uint64_t>(element * 97 + step * 13 + s)) % 9) - 4;
    if (p.shard.tp().dim == AxisShard::kPartial) sum = at.rank > 0 ? at.rank : sum - at.size * (at.size - 1) / 2;
    return static_cast<float>(sum);
  }

  void train(const Training& training) {
    std::vector<float> scalars(static_cast<size_t>(training.optimizer.scalar_rows() * kNumScalars));
    const Tensor row{
        reinterpret_cast<std::byte*>(scalars.data()), {static_cast<int64_t>(scalars.size())}, DType::kF32, {}};
    for (int t = 1; t <= kSteps; ++t) {
      store->begin_step();
      store->begin_backward(0, 0, true);
      for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
        for (Parameter* p : unit->params) {
          const ShardView v = view_of(*p, mesh.all_coordinates());
          GT_CHECK(!grad_dst(*p).accumulate, "the first writer of a step must overwrite");
          for (int64_t i = 0; i < p->grad.numel(); ++i)
            p->grad.as<float>()[i] = gradient(*p, logical_offset(v, i), t, mesh.domain(unit->domain));
        }
        store->unit(unit->name).grads_ready({});
      }
      store->reduce_grads(0);
      store->reduce_tied();
      store->finish_reduction();
      double squares[3];
      store->norm_squares({reinterpret_cast<std::byte*>(squares), {3}, DType::kF64, {}});
      norm_squares += squares[0] + squares[1];
      optimizer->fill_scalars(t, {0.02}, scalars.data());
      scalars[kGradMultiplier] = 1.f / kSamples;
      optimizer->step(row, {});
      store->all_gather_values();
    }
  }

  std::vector<ShardView> views() const {
    std::vector<ShardView> out = store->value_views();
    for (const ShardView& v : optimizer->state_views(*store)) out.push_back(v);
    return out;
  }
};

// Logical tensors, and how many ranks save each element.
struct Whole {
  std::map<std::string, std::vector<float>> values;
  std::map<std::string, std::vector<int>> saved;
  double norm_squares = 0;
  std::mutex mutex;

  void add(const TwoAxesRank& rank) {
    const std::lock_guard lock(mutex);
    norm_squares += rank.norm_squares;
    for (const ShardView& v : rank.views()) {
      auto& into = values[v.name];
      auto& count = saved[v.name];
      into.resize(static_cast<size_t>(v.full.numel()), std::numeric_limits<float>::quiet_NaN());
      count.resize(into.size());
      std::vector<float> floats(static_cast<size_t>(v.data.numel()));
      fetch_view(v, floats.data(), cpu_backend(), {});
      for (int64_t i = 0; i < v.data.numel(); ++i) {
        const auto at = static_cast<size_t>(logical_offset(v, v.begin + i));
        GT_CHECK(std::isnan(into[at]) || into[at] == floats[static_cast<size_t>(i)], v.name, ": replicas differ");
        into[at] = floats[static_cast<size_t>(i)];
        count[at] += v.save;
      }
    }
  }
};

void run(const Layout& l, const Training& training, Whole& out, const std::function<void(TwoAxesRank&)>& body) {
  INFO("tp " << l.tp << " dp " << l.dp << " ep " << l.ep << " zero " << l.zero << " " << training.optimizer.type);
  for (const std::string& error : run_ranks(l, [&](int, const Mesh& mesh) {
         TwoAxesRank rank(mesh, l.zero, training);
         body(rank);
         out.add(rank);
       }))
    REQUIRE(error == "");
}

void check_equal(const Whole& a, const Whole& b, double tolerance) {
  CHECK(a.values.size() == b.values.size());
  for (const auto& [name, expected] : b.values) {
    INFO(name);
    const std::vector<float>& found = a.values.at(name);
    REQUIRE(found.size() == expected.size());
    double worst = 0;
    for (size_t i = 0; i < found.size(); ++i)
      worst = std::max(worst, std::fabs(double{found[i]} - double{expected[i]}));
    CHECK(worst <= tolerance);
    CHECK(a.saved.at(name) == std::vector<int>(expected.size(), 1));
  }
}

// From one rank to 12; of ep and tp 1 to 4 each.
std::vector<Layout> layouts() {
  std::vector<Layout> out;
  for (const auto& [dp, ep, tp] : {std::array{1, 1, 1}, {2, 2, 2}, {4, 2, 1}, {4, 2, 2}, {4, 4, 2}, {3, 3, 4}})
    for (const int zero : {0, 1, 2, 3}) out.push_back({.tp = tp, .dp = dp, .zero = zero, .ep = ep});
  return out;
}

const std::vector<Training>& trainings() {
  static const std::vector<Training> kTrainings{
      {{.type = "adamw"}},
      {{.type = "adamw", .rounding_seed = 3}, DType::kBF16},  // rounding draws by logical element
      {{.type = "lamb"}, DType::kF32, 1e-6},
      {{.type = "muon", .momentum = 0.9f}, DType::kF32, 1e-5}};
  return kTrainings;
}

}  // namespace

TEST_CASE("a parameter split over ep and tp is initialised and trained as on one rank") {
  for (const Training& training : trainings()) {
    Whole first, trained;
    run({}, training, first, [](TwoAxesRank&) {});
    run({}, training, trained, [&](TwoAxesRank& r) { r.train(training); });
    CHECK(first.values.at("master/experts.rows") != trained.values.at("master/experts.rows"));
    for (const Layout& l : layouts()) {
      INFO("tp " << l.tp << " dp " << l.dp << " ep " << l.ep << " zero " << l.zero << " " << training.optimizer.type);
      Whole start, end;
      run(l, training, start, [](TwoAxesRank&) {});
      check_equal(start, first, 0);
      run(l, training, end, [&](TwoAxesRank& r) { r.train(training); });
      check_equal(end, trained, training.tolerance);
      CHECK(end.norm_squares == trained.norm_squares);
    }
  }
}

TEST_CASE("replicas of slices over ep and tp are compared with each other alone") {
  const Layout l{.tp = 2, .dp = 4, .zero = 0, .ep = 2};
  const auto verdict = [&](bool damage) {
    std::vector<std::vector<ReplicaClaim>> all(static_cast<size_t>(l.world()));
    for (const std::string& error : run_ranks(l, [&](int r, const Mesh&mesh) {
           const TwoAxesRank rank(mesh, l.zero, trainings().front());
           const std::vector<ShardView> views = rank.views();
           const auto named = [](const ShardView& v) { return v.name == "master/experts.rows"; };
           if (damage && r == 5) *std::find_if(views.begin(), views.end(), named)->data.as<float>() += 1;
           all[static_cast<size_t>(r)] = replica_claims(views, *cpu_backend().device, {});
         }))
      REQUIRE(error == "");
    return compare_replicas(all);
  };
  const ReplicaVerdict whole = verdict(false), broken = verdict(true);
  CHECK(whole.equal);
  CHECK(whole.covered == whole.held);  // expert_dp 2: every slice has a second copy
  CHECK_FALSE(broken.equal);
  CHECK(broken.holders == 2);
}

TEST_CASE("a checkpoint of parameters split over ep and tp fits every layout") {
  const Training& training = trainings().front();
  const std::vector<Layout> all = layouts();
  for (const Layout& saved : {all[0], all[5], all[11], all[18], all[23]}) {
    const TempDir dir;
    Whole trained;
    run(saved, training, trained, [&](TwoAxesRank& r) {
      r.train(training);
      save_checkpoint(dir.path, some_state(kSteps), r.views(), {}, {.zero_stage = saved.zero}, r.mesh, host_device(),
                      {});
    });
    for (const Layout& loaded : all) {
      INFO("saved by tp " << saved.tp << " ep " << saved.ep << ", loaded by tp " << loaded.tp << " dp " << loaded.dp
                          << " ep " << loaded.ep << " zero " << loaded.zero);
      Whole again;
      run(loaded, training, again, [&](TwoAxesRank& r) {
        for (const ShardView& v : r.views())
          std::fill_n(v.data.as<float>(), v.data.numel(), std::numeric_limits<float>::quiet_NaN());
        load_checkpoint(dir.path, "auto", r.views(), r.mesh, host_device(), {});
      });
      check_equal(again, trained, 0);
    }
  }
}
