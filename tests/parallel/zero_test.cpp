// Initial values and the parameter store on ranks that are threads: what is reduced, owned, counted and
// published.
#include <cmath>
#include <deque>
#include <map>
#include <mutex>

#include "kernels/core/rng.h"
#include "parallel/zero/init.h"
#include "parallel/zero/param_store.h"
#include "tests/parallel/comm_suite.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

constexpr int64_t kHidden = 8, kVocab = 10, kPadded = 16;
constexpr int kScopes = 3;  // embed, block, head

// One parameter of every kind: vocabulary rows with padding, three blocks on dimension 0 (matrix and bias), split
// columns, replicated, and a tied copy.
struct ToyModel {
  std::deque<Parameter> params;
  std::vector<ScopeSpec> scopes;

  Parameter& add(const char* name, Shape full, ShardSpec shard, Init init, int tp, int64_t pad_rows = 0) {
    Parameter& p = params.emplace_back();
    p.name = name;
    p.full_shape = p.local_shape = full;
    p.shard = shard;
    p.init = init;
    p.pad_rows = pad_rows;
    p.decay = full.rank >= 2;
    if (pad_rows != 0) p.local_shape.dim[0] = pad_rows;
    if (shard.kind == ShardSpec::Kind::kSplit) p.local_shape.dim[static_cast<size_t>(shard.dim)] /= tp;
    return p;
  }

  // Without a pipeline all is on stage 0; with one the tied copy is alone on the last stage.
  explicit ToyModel(const Mesh& mesh) {
    const int tp = mesh.size(Axis::kTp), stage = mesh.coord(Axis::kPp);
    const Init normal{Init::Kind::kNormal, 1}, zero{Init::Kind::kZero};
    if (mesh.first_stage()) {
      Parameter& embed = add("embed.weight", {kVocab, kHidden}, ShardSpec::split(0), normal, tp, kPadded);
      embed.tied_owner = true;
      scopes.push_back({"embed", {&embed}, stage, 0});
      std::vector<Parameter*> block{
          &add("layers.0.norm.weight", {kHidden}, ShardSpec::replicate(), {Init::Kind::kOne}, tp),
          &add("layers.0.attn.qkv.weight", {12, kHidden}, ShardSpec::split(0, 3), normal, tp),
          &add("layers.0.attn.qkv.bias", {12}, ShardSpec::split(0, 3), normal, tp),
          &add("layers.0.attn.out.weight", {kHidden, 24}, ShardSpec::split(1), normal, tp),
          &add("layers.0.attn.out.bias", {kHidden}, ShardSpec::replicate(), zero, tp)};
      scopes.push_back({"layers.0", block, stage, 1});
    }
    if (mesh.last_stage()) {
      Parameter& head = add("head.weight", {kVocab, kHidden}, ShardSpec::split(0), normal, tp, kPadded);
      head.tied_to = "embed.weight";
      scopes.push_back({"head", {&head}, stage, 2});
    }
  }
};

// A rank: mesh, model and store on the CPU.
struct Rank {
  Mesh mesh;
  ToyModel model;
  ParamStore store;
  Rank(MeshShape shape, GroupFactory& f, ZeroOptions zero = {})
      : mesh(shape, f), model(mesh), store(model.scopes, kScopes, zero, mesh, cpu_backend(), {}) {}
  int dp() const { return mesh.coord(Axis::kDp); }
};

void on_ranks(MeshShape shape, const std::function<void(GroupFactory&)>& body) {
  INFO("tp " << shape.tp << " pp " << shape.pp << " dp " << shape.dp);
  for (const std::string& error : suite::run_threads(shape.world(), body)) CHECK(error == "");
}

// Element of the logical tensor that local element i of p is, -1: padding.
int64_t logical(const Rank& r, const Parameter& p, int64_t i) {
  ShardView v;
  v.full = p.full_shape;
  v.local = p.local_shape;
  v.shard = p.shard;
  v.tp_rank = r.mesh.coord(Axis::kTp);
  v.tp_size = r.mesh.size(Axis::kTp);
  v.pad_rows = p.pad_rows;
  return logical_offset(v, i);
}

// Small integers: every sum and square below is exact.
float gradient(const std::string& name, int64_t element, int dp_rank) {
  return static_cast<float>(splitmix64(fnv1a64(name) + static_cast<uint64_t>(element * 31 + dp_rank)) % 9) - 4;
}

struct Perturb {
  std::string name;
  int64_t element = -1;
  int dp = 0;
};  // +1 on the gradient of one logical element on one dp rank

// What the backward would do: every scope in reverse, its gradients written, then grads_ready.
void backward(Rank& r, const Perturb& perturb = {}, const std::string& skip = "") {
  const int stage = r.mesh.coord(Axis::kPp);
  r.store.begin_step();
  r.store.begin_backward(stage, 0, true);
  for (auto scope = r.model.scopes.rbegin(); scope != r.model.scopes.rend(); ++scope) {
    for (Parameter* p : scope->params) {
      if (p->name == skip) continue;
      GT_CHECK(!grad_dst(*p).accumulate, "the first writer of a step must overwrite");
      for (int64_t i = 0; i < p->grad.numel(); ++i) {
        const int64_t at = logical(r, *p, i);
        float g = at < 0 ? 0 : gradient(p->name, at, r.dp());
        if (p->name == perturb.name && at == perturb.element && r.dp() == perturb.dp) g += 1;
        p->grad.as<float>()[i] = g;
      }
    }
    r.store.scope(scope->name).grads_ready({});
  }
  r.store.reduce_grads(stage);
  r.store.reduce_tied();
  r.store.finish_reduction();
}

// The reduced gradient of one logical element: over dp, and over both copies of the tied table.
double reduced(const std::string& name, int64_t element, int dp, const Perturb& perturb = {}) {
  double sum = 0;
  const bool tied = name == "embed.weight" || name == "head.weight";
  for (const std::string& n :
       tied ? std::vector<std::string>{"embed.weight", "head.weight"} : std::vector<std::string>{name})
    for (int i = 0; i < dp; ++i)
      sum += gradient(n, element, i) + (n == perturb.name && element == perturb.element && i == perturb.dp ? 1 : 0);
  return sum;
}

const std::map<std::string, int64_t>& logical_sizes() {
  static const std::map<std::string, int64_t> kSizes{
      {"embed.weight", kVocab * kHidden},         {"layers.0.norm.weight", kHidden},
      {"layers.0.attn.qkv.weight", 12 * kHidden}, {"layers.0.attn.qkv.bias", 12},
      {"layers.0.attn.out.weight", kHidden * 24}, {"layers.0.attn.out.bias", kHidden}};
  return kSizes;
}

// Logical tensors assembled from the views that are saved, and how often each element came.
struct Assembled {
  std::map<std::string, std::vector<float>> values;
  std::map<std::string, std::vector<int>> times;
  std::mutex mutex;
  void add(const std::vector<ShardView>& views) {
    const std::lock_guard lock(mutex);
    for (const ShardView& v : views) {
      if (!v.save) continue;
      auto& out = values[v.name];
      auto& count = times[v.name];
      out.resize(static_cast<size_t>(v.full.numel()));
      count.resize(out.size());
      for (int64_t i = 0; i < v.data.numel(); ++i)
        if (const int64_t at = logical_offset(v, v.begin + i); at >= 0) {
          out[static_cast<size_t>(at)] = v.data.as<float>()[i];
          ++count[static_cast<size_t>(at)];
        }
    }
  }
  void check_whole(const std::string& group) const {
    CHECK(values.size() == logical_sizes().size());
    for (const auto& [name, size] : logical_sizes()) {
      INFO(name);
      REQUIRE(times.count(group + "/" + name) == 1);
      CHECK(times.at(group + "/" + name) == std::vector<int>(static_cast<size_t>(size), 1));  // each element once
    }
  }
};

const std::vector<MeshShape>& shapes() {
  static const std::vector<MeshShape> kShapes = [] {
    std::vector<MeshShape> out;
    for (int tp : {1, 2, 4})
      for (int dp : {1, 2, 4})
        for (int pp : {1, 2})
          if (tp * dp * pp <= 8) out.push_back({.pp = pp, .dp = dp, .tp = tp});
    return out;
  }();
  return kShapes;
}

}  // namespace

TEST_CASE("initial values are equal under every layout and equal to the fixed numbers") {
  for (const MeshShape& shape : shapes())
    for (int threads : {1, 3}) {
      Assembled all;
      on_ranks(shape, [&](GroupFactory& f) {
        Rank r(shape, f);
        r.store.init(1234, threads);
        all.add(r.store.value_views());
        for (const Parameter& p : r.model.params)  // also what is not saved: padding, the tied copy
          for (int64_t i = 0; i < p.value.numel(); ++i) {
            const int64_t at = logical(r, p, i);
            const std::string name = p.tied_to.empty() ? p.name : p.tied_to;
            const uint64_t key = stream_key(1234, "init/" + name);
            float want = p.init.kind == Init::Kind::kOne ? 1.f : 0.f;
            if (p.init.kind == Init::Kind::kNormal && at >= 0)
              want = static_cast<float>(philox_normal(key, static_cast<uint64_t>(at)));
            GT_CHECK(p.value.as<float>()[i] == want, p.name, " element ", i, ": ", p.value.as<float>()[i],
                     " instead of ", want);
          }
      });
      all.check_whole("master");
      const double fixed[] = {-0.591299335, -0.206624591, -0.125607202, 0.182982499};
      for (size_t i = 0; i < 4; ++i)
        CHECK(all.values["master/layers.0.attn.qkv.weight"][i] == Approx(fixed[i]).epsilon(1e-7));
    }
}

TEST_CASE("reduced gradients equal the serial sum for every stage, bucket and overlap") {
  for (const MeshShape& shape : shapes())
    for (int stage : {0, 1})
      for (int64_t bucket : {int64_t{1}, int64_t{1500}, int64_t{1} << 30})
        for (bool overlap : {false, true}) {
          INFO("zero " << stage << " bucket " << bucket << " overlap " << overlap);
          Assembled all;
          on_ranks(shape, [&](GroupFactory& f) {
            Rank r(shape, f, {stage, bucket, overlap});
            for (int step = 0; step < 2; ++step) backward(r);  // the second step starts from what the first left
            all.add(r.store.grad_views());
            if (stage == 0)  // every rank updates everything: whole gradients
              for (const Parameter& p : r.model.params)
                for (int64_t i = 0; i < p.grad.numel(); ++i)
                  if (const int64_t at = logical(r, p, i); at >= 0 && (p.tied_to.empty() || shape.pp > 1))
                    GT_CHECK(p.grad.as<float>()[i] == reduced(p.name, at, shape.dp), p.name, " element ", at);
          });
          all.check_whole("grad");
          for (const auto& [name, size] : logical_sizes())
            for (int64_t i = 0; i < size; ++i) {
              INFO(name << " element " << i);
              REQUIRE(all.values["grad/" + name][static_cast<size_t>(i)] == reduced(name, i, shape.dp));
            }
        }
}

TEST_CASE("the norm counts each element once, whoever holds it") {
  // One perturbed element a rank in turn: in each parameter, on each dp rank, at the first, a middle and the last
  // element, so that every tp rank's slice is met.
  std::vector<Perturb> perturbs{{}};
  for (const auto& [name, size] : logical_sizes())
    for (int64_t at : {int64_t{0}, size / 2, size - 1})
      for (int dp : {0, 1, 3}) {
        perturbs.push_back({name, at, dp});
        if (name == "embed.weight") perturbs.push_back({"head.weight", at, dp});
      }
  for (const MeshShape& shape : shapes())
    for (int stage : {0, 1}) {
      INFO("zero " << stage);
      std::vector<std::vector<double>> totals(perturbs.size(), std::vector<double>(kScopes));
      std::mutex mutex;
      on_ranks(shape, [&](GroupFactory& f) {
        Rank r(shape, f, {stage, 1, true});
        for (size_t k = 0; k < perturbs.size(); ++k) {
          backward(r, perturbs[k]);
          std::vector<double> norms(kScopes, 7.0);
          r.store.norm_squares({reinterpret_cast<std::byte*>(norms.data()), {kScopes}, DType::kF64, {}});
          const std::lock_guard lock(mutex);
          for (size_t s = 0; s < kScopes; ++s) totals[k][s] += norms[s];
        }
      });
      for (size_t k = 0; k < perturbs.size(); ++k) {
        INFO(perturbs[k].name << " element " << perturbs[k].element << " dp " << perturbs[k].dp);
        std::vector<double> want(kScopes);
        for (const auto& [name, size] : logical_sizes())
          for (int64_t i = 0; i < size; ++i) {
            const double g = reduced(name, i, shape.dp, perturbs[k]);
            want[name == "embed.weight" ? 0 : 1] += g * g;
          }
        CHECK(totals[k] == want);  // integers: exactly
      }
    }
}

TEST_CASE("update ranges cover each element once a replica, with its decay, and publish reaches every rank") {
  for (const MeshShape& shape : shapes())
    for (int stage : {0, 1}) {
      INFO("zero " << stage);
      on_ranks(shape, [&](GroupFactory& f) {
        Rank r(shape, f, {stage, 1, true});
        r.store.init(1, 1);
        std::vector<int64_t> versions;
        for (Parameter& p : r.model.params) versions.push_back(p.version);
        std::vector<int> times(static_cast<size_t>(r.store.num_scopes()));
        for (const UpdateRange& u : r.store.ranges()) {
          GT_CHECK(u.at + u.value.numel() <= r.store.state_elements(u.scope), "a range leaves the scope's state");
          GT_CHECK(u.value.numel() == u.grad.numel(), "value and gradient differ");
          for (int64_t i = 0; i < u.value.numel(); ++i) u.value.as<float>()[i] += u.decay ? 100 : 1000;
        }
        r.store.publish();
        size_t k = 0;
        for (Parameter& p : r.model.params) {
          GT_CHECK(p.version > versions[k], p.name, " kept its version");
          ++k;
          const std::string name = p.tied_to.empty() ? p.name : p.tied_to;
          const uint64_t key = stream_key(1, "init/" + name);
          for (int64_t i = 0; i < p.value.numel(); ++i) {
            const int64_t at = logical(r, p, i);
            if (at < 0) continue;
            float before = p.init.kind == Init::Kind::kOne ? 1.f : 0.f;
            if (p.init.kind == Init::Kind::kNormal)
              before = static_cast<float>(philox_normal(key, static_cast<uint64_t>(at)));
            const float want = before + (p.decay ? 100.f : 1000.f);
            GT_CHECK(p.value.as<float>()[i] == want, p.name, " element ", at, ": ", p.value.as<float>()[i],
                     " instead of ", want);
          }
        }
      });
    }
}

TEST_CASE("a parameter without gradient and a step that was never reduced are errors with a name") {
  for (bool overlap : {false, true}) {
    const std::vector<std::string> errors = suite::run_threads(1, [&](GroupFactory& f) {
      Rank r({}, f, {1, 1, overlap});
      backward(r, {}, "layers.0.attn.qkv.bias");
    });
    CHECK_THAT(errors[0], Catch::Contains("layers.0.attn.qkv.bias got no gradient"));
  }
  const std::vector<std::string> errors = suite::run_threads(1, [&](GroupFactory& f) {
    Rank r({}, f);
    r.store.begin_step();
    r.store.finish_reduction();
  });
  CHECK_THAT(errors[0], Catch::Contains("gradients of embed were never reduced"));
  const std::vector<std::string> unknown =
      suite::run_threads(1, [&](GroupFactory& f) { Rank({}, f).store.scope("layers.7"); });
  CHECK_THAT(unknown[0], Catch::Contains("no parameter scope named layers.7"));
}

TEST_CASE("a rank holds the bytes that its stage promises") {
  for (int stage : {0, 1})
    on_ranks({.pp = 1, .dp = 4, .tp = 2}, [&](GroupFactory& f) {
      Rank r({.pp = 1, .dp = 4, .tp = 2}, f, {stage, 1, true});
      // embed 64 padded to 256; block 8 + 48 + 6 + 96 + 8 = 166 to 256; the tied copy has gradients, no values
      GT_CHECK(r.store.value_bytes() == 4 * (256 + 256), "values ", r.store.value_bytes());
      GT_CHECK(r.store.grad_bytes() == 4 * (256 + 256 + 256), "gradients ", r.store.grad_bytes());
      GT_CHECK(r.store.local_elements() == 64 + 166, "elements ", r.store.local_elements());
      for (int k : {0, 1})
        GT_CHECK(r.store.state_elements(k) == (stage == 0 ? 256 : 64), "state ", r.store.state_elements(k));
      GT_CHECK(r.store.state_elements(2) == 0, "the tied copy has state");
    });
}
