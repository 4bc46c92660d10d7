// FSDP units whose parameters are replicated over a different set of ranks than the rest of the model: reduced,
// sharded, gathered and counted over their own domain.
#include "tests/parallel/toy_store.h"

using namespace gt;
using namespace gt::toy_store;

namespace {

// A dense matrix and an expert's: every ep coordinate has its own expert.
struct MixedModel {
  Parameter dense, expert;
  std::vector<UnitSpec> units;

  explicit MixedModel(const Mesh& mesh) {
    const std::string own = cat("experts.", mesh.coord(Axis::kEp), ".weight");
    for (auto [p, name] : {std::pair{&dense, std::string("dense.weight")}, {&expert, own}}) {
      p->name = name;
      p->full_shape = p->local_shape = {12, kHidden};
      p->init = {Init::Kind::kNormal, 1};
    }
    units.push_back({"dense", {&dense}, 0, 0});
    units.push_back({.name = "expert", .params = {&expert}, .stage = 0, .index = 1, .domain = Axis::kExpertDp});
  }
};

void run_backward(ParamStore& store, MixedModel& model, int rank) {
  store.begin_step();
  store.begin_backward(0, 0, true);
  for (auto unit = model.units.rbegin(); unit != model.units.rend(); ++unit) {
    Parameter& p = *unit->params.front();
    GT_CHECK(!grad_dst(p).accumulate, "the first writer of a step must overwrite");
    for (int64_t i = 0; i < p.grad.numel(); ++i) p.grad.as<float>()[i] = gradient(p.name, i, rank);
    store.unit(unit->name).grads_ready({});
  }
  store.reduce_grads(0);
  store.reduce_tied();
  store.finish_reduction();
}

}  // namespace

TEST_CASE("gradients are summed over the domain of their unit, at every ZeRO stage") {
  for (const MeshShape shape :
       {MeshShape{.dp = 4, .ep = 2}, MeshShape{.dp = 2, .ep = 2}, MeshShape{.dp = 2, .ep = 4, .cp = 2},
        MeshShape{.dp = 2, .ep = 2, .cp = 2}, MeshShape{.dp = 1, .cp = 2}})
    for (const ZeroOptions& zero : all_stages()) {
      INFO("cp " << shape.cp << " ep " << shape.ep << " " << text(zero));
      Assembled gradients, values;
      std::mutex mutex;
      std::vector<double> squares(3);
      on_ranks(shape, [&](GroupFactory& f) {
        const Mesh mesh(shape, f);
        MixedModel model(mesh);
        ParamStore store(model.units, 2, zero, mesh, cpu_backend(), {});
        store.init(1, 1);
        run_backward(store, model, mesh.rank());
        gradients.add(store.grad_views());
        values.add(store.value_views());
        double own[3];
        store.norm_squares({reinterpret_cast<std::byte*>(own), {3}, DType::kF64, {}});
        const std::lock_guard lock(mutex);
        for (size_t i = 0; i < 3; ++i) squares[i] += own[i];
      });
      double expected[2] = {};
      const auto check = [&](const std::string& name, const std::vector<int>& ranks, double& square) {
        INFO(name);
        CHECK(gradients.times.at("grad/" + name) == std::vector<int>(12 * kHidden, 1));
        CHECK(values.times.at("master/" + name) == std::vector<int>(12 * kHidden, 1));
        for (int64_t i = 0; i < 12 * kHidden; ++i) {
          double sum = 0;
          for (const int r : ranks) sum += gradient(name, i, r);
          CHECK(gradients.values.at("grad/" + name)[static_cast<size_t>(i)] == sum);
          square += sum * sum;
        }
      };
      check("dense.weight", shape.members({Axis::kDp, Axis::kCp}, 0), expected[0]);
      for (int e = 0; e < shape.ep; ++e)
        check(cat("experts.", e, ".weight"), shape.members(Axis::kExpertDp, e * shape.tp), expected[1]);
      CHECK(squares == std::vector<double>{expected[0], expected[1], 0});
    }
}
