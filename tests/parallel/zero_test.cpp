// Initial values and the parameter store on ranks that are threads: what is reduced, owned, counted and
// published.
#include <cmath>
#include <deque>
#include <map>
#include <mutex>
#include <set>

#include "kernels/core/rng.h"
#include "parallel/zero/init.h"
#include "parallel/zero/param_store.h"
#include "parallel/zero/shard_copy.h"
#include "tests/parallel/comm_suite.h"
#include "tests/support/heap/count_allocations.h"
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

// body(parameter) while its scope is acquired: its values are whole.
void for_each_readable(Rank& r, const std::function<void(Parameter&)>& body) {
  for (const ScopeSpec& s : r.model.scopes) {
    r.store.scope(s.name).acquire({});
    for (Parameter* p : s.params) body(*p);
    r.store.scope(s.name).release({});
  }
}

struct Perturb {
  std::string name;
  int64_t element = -1;
  int dp = 0;
  float factor = 1;
};  // +1 on the gradient of one logical element on one dp rank; all times factor

// What the backward would do: every scope in reverse, its gradients written, then grads_ready.
void backward(Rank& r, const Perturb& perturb = {}, const std::string& skip = "",
              const std::function<void()>& pause = [] {}) {
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
        g *= perturb.factor;
        const Tensor one = p->grad.view({p->grad.numel()}).slice(i, 1);
        if (one.dtype == DType::kF32) *one.as<float>() = g;
        else cpu_backend().ops->cast({.src = {reinterpret_cast<std::byte*>(&g), {1}, DType::kF32, {}}, .dst = one}, {});
      }
    }
    pause();
    r.store.scope(scope->name).grads_ready({});
  }
  r.store.reduce_grads(stage);
  pause();
  r.store.reduce_tied();
  r.store.finish_reduction();
}

// Every stage, and both ways to reduce gradients where there are two. All scopes of stage 3 are sharded.
std::vector<ZeroOptions> all_stages(int64_t bucket = 1, bool overlap = true) {
  std::vector<ZeroOptions> out;
  for (int stage : {0, 1, 2, 3})
    for (GradReduce reduce : {GradReduce::kEnd, GradReduce::kEach})
      if (stage >= 2 || reduce == GradReduce::kEnd) out.push_back({stage, bucket, overlap, reduce, 1, 0});
  return out;
}
std::string text(const ZeroOptions& z) {
  return cat("zero ", z.stage, " grad_reduce ", static_cast<int>(z.grad_reduce), " bucket ", z.bucket_bytes,
             z.overlap ? " overlap" : "");
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
      std::vector<float> floats(static_cast<size_t>(v.data.numel()));
      fetch_view(v, floats.data(), cpu_backend(), {});
      for (int64_t i = 0; i < v.data.numel(); ++i)
        if (const int64_t at = logical_offset(v, v.begin + i); at >= 0) {
          out[static_cast<size_t>(at)] = floats[static_cast<size_t>(i)];
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
    for (int stage : {1, 3}) {
      const int threads = stage;
      Assembled all;
      on_ranks(shape, [&](GroupFactory& f) {
        Rank r(shape, f, {.stage = stage, .persist_numel = 0});
        r.store.init(1234, threads);
        all.add(r.store.value_views());
        for_each_readable(r, [&](Parameter& p) {  // also what is not saved: padding, the tied copy
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
      });
      all.check_whole("master");
      const double fixed[] = {-0.591299335, -0.206624591, -0.125607202, 0.182982499};
      for (size_t i = 0; i < 4; ++i)
        CHECK(all.values["master/layers.0.attn.qkv.weight"][i] == Approx(fixed[i]).epsilon(1e-7));
    }
}

TEST_CASE("reduced gradients equal the serial sum for every stage, bucket and overlap") {
  for (const MeshShape& shape : shapes())
    for (int64_t bucket : {int64_t{1}, int64_t{1500}, int64_t{1} << 30})
      for (bool overlap : {false, true})
        for (const ZeroOptions& z : all_stages(bucket, overlap)) {
          INFO(text(z));
          Assembled all;
          on_ranks(shape, [&](GroupFactory& f) {
            Rank r(shape, f, z);
            for (int step = 0; step < 2; ++step) backward(r);  // the second step starts from what the first left
            all.add(r.store.grad_views());
            if (z.stage == 0)  // every rank updates everything: whole gradients
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

namespace {
float rounded(float x, DType t) {
  uint16_t half = 0;
  cpu_backend().ops->cast({.src = {reinterpret_cast<std::byte*>(&x), {1}, DType::kF32, {}},
                           .dst = {reinterpret_cast<std::byte*>(&half), {1}, t, {}}}, {});
  cpu_backend().ops->cast({.src = {reinterpret_cast<std::byte*>(&half), {1}, t, {}},
                           .dst = {reinterpret_cast<std::byte*>(&x), {1}, DType::kF32, {}}}, {});
  return x;
}
}  // namespace

TEST_CASE("gradients are rounded to what travels and then added up, at every stage alike, for half the bytes") {
  const float factor = 1.01f;  // no half says these gradients
  for (const DType type : {DType::kBF16, DType::kF16})
    for (const MeshShape shape : {MeshShape{.dp = 2, .tp = 2}, MeshShape{.pp = 2, .dp = 4}})
      for (ZeroOptions z : all_stages(1500)) {
        INFO(text(z) << ' ' << name_of(type));
        z.reduce = type;
        Assembled all;
        on_ranks(shape, [&](GroupFactory& f) {
          Rank r(shape, f, z);
          for (int step = 0; step < 2; ++step) backward(r, {.factor = factor});
          all.add(r.store.grad_views());
          int64_t elements = 0;
          for (const ScopeSpec& s : r.model.scopes) {
            int64_t n = 0;
            for (const Parameter* p : s.params) n += p->local_shape.numel();
            const int64_t unit = 64 * shape.dp;
            elements += (n + unit - 1) / unit * unit;
          }
          const int64_t sent = r.mesh.group(Axis::kDp).counters().reduce_scatter;
          GT_CHECK(sent == 2 * 2 * elements * (shape.dp - 1) / shape.dp, "sent ", sent, " bytes of ", elements);
        });
        all.check_whole("grad");
        for (const auto& [name, size] : logical_sizes()) {
          if (name == "embed.weight") continue;  // a sum of two reductions
          for (int64_t i = 0; i < size; ++i) {
            float sum = 0;
            for (int d = 0; d < shape.dp; ++d) sum += rounded(gradient(name, i, d) * factor, type);
            INFO(name << " element " << i);
            REQUIRE(all.values["grad/" + name][static_cast<size_t>(i)] == rounded(sum, type));
          }
        }
      }
}

TEST_CASE("gradients kept in bf16 take half the bytes, and what the ranks add up is rounded to them once") {
  const float factor = 1.01f;  // no half says these gradients
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16})
    for (const MeshShape shape : {MeshShape{.dp = 2, .tp = 2}, MeshShape{.pp = 2, .dp = 4}})
      for (ZeroOptions z : all_stages(1500)) {
        INFO(text(z) << " added up in " << name_of(type));
        z.grad = DType::kBF16;
        z.reduce = type;
        Assembled all;
        on_ranks(shape, [&](GroupFactory& f) {
          Rank r(shape, f, z);
          for (int step = 0; step < 2; ++step) backward(r, {.factor = factor});
          all.add(r.store.grad_views());
          const int64_t sent = r.mesh.group(Axis::kDp).counters().reduce_scatter;
          const int64_t kept = r.store.grad_bytes() - r.store.temporary_bytes().gradients;
          ZeroOptions whole = z;
          whole.grad = DType::kF32;
          Rank other(shape, f, whole);
          backward(other);
          const int64_t of_f32 = other.store.grad_bytes() - other.store.temporary_bytes().gradients;
          const int64_t padding = kAlign * r.store.num_scopes();  // of buffers this small
          GT_CHECK(2 * kept - padding <= of_f32, "kept ", kept, " bytes, in f32 ", of_f32);
          GT_CHECK(sent % size_of(type) == 0 && sent > 0, "sent ", sent);
        });
        all.check_whole("grad");
        for (const auto& [name, size] : logical_sizes()) {
          if (name == "embed.weight") continue;  // a sum of two reductions
          for (int64_t i = 0; i < size; ++i) {
            float sum = 0;
            for (int d = 0; d < shape.dp; ++d) {
              const float kept = rounded(gradient(name, i, d) * factor, DType::kBF16);
              sum += type == DType::kF32 ? kept : rounded(kept, type);
            }
            const float travelled = type == DType::kF32 ? sum : rounded(sum, type);
            INFO(name << " element " << i);
            REQUIRE(all.values["grad/" + name][static_cast<size_t>(i)] == rounded(travelled, DType::kBF16));
          }
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
    for (const ZeroOptions& z : all_stages()) {
      INFO(text(z));
      std::vector<std::vector<double>> totals(perturbs.size(), std::vector<double>(kScopes));
      std::mutex mutex;
      on_ranks(shape, [&](GroupFactory& f) {
        Rank r(shape, f, z);
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
    for (const ZeroOptions& z : all_stages()) {
      INFO(text(z));
      on_ranks(shape, [&](GroupFactory& f) {
        Rank r(shape, f, z);
        r.store.init(1, 1);
        std::vector<int64_t> versions;
        for_each_readable(r, [&](Parameter& p) { versions.push_back(p.version); });
        std::vector<int> times(static_cast<size_t>(r.store.num_scopes()));
        for (const UpdateRange& u : r.store.ranges()) {
          GT_CHECK(u.at + u.value.numel() <= r.store.state_elements(u.scope), "a range leaves the scope's state");
          GT_CHECK(u.value.numel() == u.grad.numel(), "value and gradient differ");
          for (int64_t i = 0; i < u.value.numel(); ++i) u.value.as<float>()[i] += u.decay ? 100 : 1000;
        }
        r.store.publish();
        size_t k = 0;
        for_each_readable(r, [&](Parameter& p) {
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
        });
      });
    }
}

TEST_CASE("copies of a tied table that drift apart are found on both stages") {
  for (const MeshShape& shape : {MeshShape{.pp = 2}, MeshShape{.pp = 2, .dp = 2, .tp = 2}})
    for (const ZeroOptions& z : all_stages()) {
      INFO(text(z));
      on_ranks(shape, [&](GroupFactory& f) {
        Rank r(shape, f, z);
        r.store.init(1, 1);
        r.store.require_equal_copies();
        const bool here = r.dp() == 0 && r.mesh.coord(Axis::kTp) == shape.tp - 1;
        if (here && r.mesh.last_stage()) r.store.ranges().front().value.as<float>()[0] += 1;
        std::string error;
        try {
          r.store.require_equal_copies();
        } catch (const Error& e) { error = e.what(); }
        const char* text = "the copies of embed.weight on the first and the last stage differ";
        const bool told = error.find(text) != std::string::npos;
        GT_CHECK(told == here, "rank ", f.world_rank(), ": ", error);
      });
    }
}

TEST_CASE("a parameter without gradient and a step that was never reduced are errors with a name") {
  for (bool overlap : {false, true})
    for (const ZeroOptions& z : all_stages(1, overlap))
      for (const char* missing : {"layers.0.attn.qkv.bias", "embed.weight"}) {  // one of several, and all of a scope
        INFO(text(z));
        const std::vector<std::string> errors = suite::run_threads(2, [&](GroupFactory& f) {
          Rank r({.dp = 2}, f, z);
          try {
            backward(r, {}, missing);
          } catch (...) {  // both ranks come here; neither frees what the other one still adds up
            r.mesh.world().barrier();
            throw;
          }
        });
        CHECK_THAT(errors[0], Catch::Contains(cat(missing, " got no gradient")));
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

TEST_CASE("a parameter that may be without gradient has one of 0 at every stage, and the others keep theirs", "[D1]") {
  for (bool overlap : {false, true})
    for (ZeroOptions z : all_stages(1500, overlap))
      for (const char* missing : {"layers.0.attn.qkv.bias", "embed.weight", "layers.0.norm.weight"})
        for (const MeshShape& shape : {MeshShape{.dp = 2}, MeshShape{.pp = 2, .dp = 2, .tp = 2}}) {
          INFO(text(z) << " without " << missing);
          z.allow_unused = true;
          Assembled all;
          on_ranks(shape, [&](GroupFactory& f) {
            Rank r(shape, f, z);
            backward(r);  // leaves values where the next step writes none
            backward(r, {}, missing);
            all.add(r.store.grad_views());
          });
          all.check_whole("grad");
          for (const auto& [name, size] : logical_sizes())
            for (int64_t i = 0; i < size; ++i) {
              double want = reduced(name, i, shape.dp);
              if (name == missing)
                for (int dp = 0; dp < shape.dp; ++dp) want -= gradient(name, i, dp);
              INFO(name << " element " << i);
              REQUIRE(all.values["grad/" + name][static_cast<size_t>(i)] == want);
            }
        }
}

TEST_CASE("a rank holds the bytes that its stage promises") {
  for (const ZeroOptions& z : all_stages())
    on_ranks({.pp = 1, .dp = 4, .tp = 2}, [&](GroupFactory& f) {
      Rank r({.pp = 1, .dp = 4, .tp = 2}, f, z);
      // embed 64 padded to 256; block 8 + 48 + 6 + 96 + 8 = 166 to 256; the tied copy has gradients, no values
      const int values = z.stage == 3 ? 4 : 1, grads = z.grad_reduce == GradReduce::kEach ? 4 : 1;
      GT_CHECK(r.store.value_bytes() == 4 * (256 + 256) / values, "values ", r.store.value_bytes());
      GT_CHECK(r.store.grad_bytes() == 4 * (256 + 256 + 256) / grads, "gradients ", r.store.grad_bytes());
      GT_CHECK(r.store.local_elements() == 64 + 166, "elements ", r.store.local_elements());
      for (int k : {0, 1})
        GT_CHECK(r.store.state_elements(k) == (z.stage == 0 ? 256 : 64), "state ", r.store.state_elements(k));
      GT_CHECK(r.store.state_elements(2) == 0, "the tied copy has state");
      backward(r);
      for_each_readable(r, [](Parameter&) {});
      const ZeroMemory live = r.store.temporary_bytes();  // one scope in use; one on its way, one being written
      GT_CHECK(live.gathered == (z.stage == 3 ? 4 * 256 : 0), "gathered ", live.gathered);
      GT_CHECK(live.gradients == (grads == 4 ? 2 * 4 * 256 : 0), "whole gradients ", live.gradients);
    });
}

TEST_CASE("gradients of several microbatches add up, whatever is reduced when") {
  for (const MeshShape& shape : {MeshShape{.dp = 2}, MeshShape{.dp = 4, .tp = 2}})
    for (int64_t bucket : {int64_t{1}, int64_t{1500}, int64_t{1} << 30})
      for (bool overlap : {false, true})
        for (const ZeroOptions& z : all_stages(bucket, overlap)) {
          INFO(text(z));
          Assembled all;
          on_ranks(shape, [&](GroupFactory& f) {
            Rank r(shape, f, z);
            r.store.begin_step();
            for (int m = 0; m < 3; ++m) {
              r.store.begin_backward(0, m, m == 2);
              for (auto scope = r.model.scopes.rbegin(); scope != r.model.scopes.rend(); ++scope) {
                for (Parameter* p : scope->params) {
                  const GradDst to = grad_dst(*p);
                  for (int64_t i = 0; i < to.tensor.numel(); ++i) {
                    const int64_t at = logical(r, *p, i);
                    const float g = at < 0 ? 0 : gradient(p->name, at, r.dp()) * static_cast<float>(m + 1);
                    float& x = to.tensor.as<float>()[i];
                    x = to.accumulate ? x + g : g;
                  }
                }
                r.store.scope(scope->name).grads_ready({});
              }
            }
            r.store.reduce_grads(0);
            r.store.reduce_tied();
            r.store.finish_reduction();
            all.add(r.store.grad_views());
            const int times = z.grad_reduce == GradReduce::kEach && z.stage >= 2 ? 3 : 1;
            const int64_t a = 3 * 64 * 4 * (shape.dp - 1);  // bytes: three scopes of one shard of 64 elements a rank
            const int64_t sent = r.mesh.group(Axis::kDp).counters().reduce_scatter;
            GT_CHECK(shape.tp == 1 || sent == times * a, "sent ", sent, " in ", times, " reductions of ", a);
          });
          all.check_whole("grad");
          for (const auto& [name, size] : logical_sizes())
            for (int64_t i = 0; i < size; ++i) {
              INFO(name << " element " << i);
              REQUIRE(all.values["grad/" + name][static_cast<size_t>(i)] == 6 * reduced(name, i, shape.dp));
            }
        }
}

TEST_CASE("ranks that are late at random places change no sum in 200 steps") {
  const MeshShape shape{.dp = 4};
  for (const ZeroOptions& z : {ZeroOptions{1, 1500}, ZeroOptions{2, 1, true, GradReduce::kEach},
                               ZeroOptions{3, 1500, true, GradReduce::kEach, 1, 0}})
    on_ranks(shape, [&](GroupFactory& f) {
      Rank r(shape, f, z);
      r.store.init(5, 1);
      uint64_t draw = 0;
      const auto pause = [&] { suite::random_sleep(splitmix64(++draw * 1000 + static_cast<uint64_t>(r.mesh.rank()))); };
      for (int step = 0; step < 200; ++step) {
        for_each_readable(r, [&](Parameter&) { pause(); });
        backward(r, {}, "", pause);
        for (const ShardView& v : r.store.grad_views()) {
          if (!v.save) continue;
          for (int64_t i = 0; i < v.data.numel(); ++i)
            if (const int64_t at = logical_offset(v, v.begin + i); at >= 0)
              GT_CHECK(v.data.as<float>()[i] == reduced(v.name.substr(5), at, shape.dp), text(z), " step ", step, ' ',
                       v.name, " element ", at);
        }
        r.store.publish();
      }
    });
}

TEST_CASE("gathered bytes that are used again never carry a version that was seen there") {
  on_ranks({.dp = 2}, [](GroupFactory& f) {
    std::map<const std::byte*, std::set<int64_t>> seen;
    bool shared = false;
    for (int store = 0; store < 2; ++store) {  // the second store is built where the first one was
      Rank r({.dp = 2}, f, {.stage = 3, .prefetch = 0, .persist_numel = 0});
      r.store.init(3, 1);
      std::map<const std::byte*, std::string> holder;
      for (int step = 0; step < 3; ++step) {
        for_each_readable(r, [&](Parameter& p) {
          if (!p.tied_to.empty()) return;
          GT_CHECK(p.version > 0 && seen[p.value.data].insert(p.version).second, p.name, " version ", p.version,
                   " was at this address before");
          const auto [at, fresh] = holder.try_emplace(p.value.data, p.name);
          shared = shared || (!fresh && at->second != p.name);
        });
        for (const Parameter& p : r.model.params)
          if (p.name != "head.weight" && p.name != "embed.weight")
            GT_CHECK(!p.value && p.value.shape == p.local_shape, p.name, " is still readable after its scope");
        r.store.publish();
        for (const Parameter& p : r.model.params) GT_CHECK(!p.value, p.name, " survives an update");
      }
    }
    GT_CHECK(shared, "no two scopes shared an address: the test shows nothing");
  });
}

TEST_CASE("scopes are gathered ahead in the order of use, and an unexpected one is an error") {
  for (int prefetch : {0, 1}) on_ranks({.dp = 2}, [=](GroupFactory& f) {
    Rank r({.dp = 2}, f, {.stage = 3, .prefetch = prefetch, .persist_numel = 0});
    r.store.init(3, 1);
    const StageVisit step[] = {{0, false}, {0, true}}, evaluation[] = {{0, false}};
    r.store.set_order(step, evaluation);
    // In units of the table's 128 elements; the block is three of them.
    const auto gathered = [&] { return r.mesh.group(Axis::kDp).counters().all_gather / (4 * 128 / 2); };
    const auto use = [&](const char* name, int64_t want) {
      r.store.scope(name).acquire({});
      r.store.scope(name).release({});
      GT_CHECK(gathered() == want, "at ", name, " ", gathered(), " units are gathered, not ", want);
    };
    r.store.begin_step();
    GT_CHECK(gathered() == prefetch, "the first scope is not on its way");
    use("embed", prefetch ? 4 : 1);
    use("layers.0", 4);
    use("head", prefetch ? 4 : 5);  // the same table; with prefetch it stayed, for the block knew what comes
    use("head", prefetch ? 4 : 5);  // its backward
    use("layers.0", prefetch ? 4 : 8);
    use("embed", prefetch ? 4 : 9);
    const int64_t before = gathered();
    r.store.begin_evaluation();
    use("embed", before + (prefetch ? 4 : 1));
    use("layers.0", before + 4);
    use("head", before + (prefetch ? 4 : 5));
    std::string error;
    r.store.begin_step();
    try {
      use("layers.0", 0);
    } catch (const Error& e) { error = e.what(); }
    r.store.publish();  // what was gathered ahead lands before its bytes go
    GT_CHECK(error.find("scope layers.0 is used where the order has embed") != std::string::npos, error);
  });
}

TEST_CASE("a warm step of a store allocates nothing") {
  for (const ZeroOptions& z : all_stages())
    on_ranks({.dp = 2}, [&](GroupFactory& f) {
      Rank r({.dp = 2}, f, z);
      r.store.init(3, 1);
      const StageVisit order[] = {{0, false}, {0, true}};
      r.store.set_order(order, order);
      std::vector<double> norms(kScopes);
      const char *scopes[] = {"embed", "layers.0", "head"};
      const auto step = [&] {
        r.store.begin_step();
        for (int k : {0, 1, 2, 2, 1, 0}) {
          ParamScope& s = r.store.scope(scopes[k]);
          s.acquire({});
          s.release({});
        }
        r.store.begin_backward(0, 0, true);
        for (int k : {2, 1, 0}) {
          for (Parameter* p : r.model.scopes[static_cast<size_t>(k)].params) grad_dst(*p);
          r.store.scope(scopes[k]).grads_ready({});
        }
        r.store.reduce_grads(0);
        r.store.reduce_tied();
        r.store.finish_reduction();
        r.store.norm_squares({reinterpret_cast<std::byte*>(norms.data()), {kScopes}, DType::kF64, {}});
        r.store.publish();
      };
      for (int k = 0; k < 16; ++k) step();  // the groups have a ring of calls to fill
      CountAllocations count;
      step();
      const int64_t made = count.stop();
      GT_CHECK(made == 0, text(z), ": ", made, " allocations");
    });
}
