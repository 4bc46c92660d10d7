// A model with one parameter of each kind in a parameter store, on thread ranks: shared by the store's tests.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/core/rng.h"
#include "parallel/zero/param_store.h"
#include "parallel/zero/shard_copy.h"
#include "tests/parallel/comm_suite.h"
#include "tests/support/test.h"

namespace gt::toy_store {

constexpr int64_t kHidden = 8, kVocab = 10, kPadded = 16;
constexpr int kUnits = 3;  // embed, block, head

// One parameter of every kind: vocabulary rows with padding, three blocks along dimension 0 (matrix and bias), columns
// split, replicated, and a tied copy.
struct ToyModel {
  std::deque<Parameter> params;
  std::vector<UnitSpec> units;

  Parameter& add(const char* name, Shape full, ShardSpec shard, Init init, int tp, int64_t pad_rows = 0) {
    Parameter& p = params.emplace_back();
    p.name = name;
    p.full_shape = p.local_shape = full;
    p.shard = shard;
    p.init = init;
    p.pad_rows = pad_rows;
    p.decay = full.rank >= 2;
    if (pad_rows != 0) p.local_shape.dim[0] = pad_rows;
    if (shard.tp().splits()) p.local_shape.dim[static_cast<size_t>(shard.tp().dim)] /= tp;
    return p;
  }

  // Without a pipeline everything is on stage 0; with one the tied copy is alone on the last stage.
  explicit ToyModel(const Mesh& mesh) {
    const int tp = mesh.size(Axis::kTp), stage = mesh.coord(Axis::kPp);
    const Init normal{Init::Kind::kNormal, 1}, zero{Init::Kind::kZero};
    if (mesh.first_stage()) {
      Parameter& embed = add("embed.weight", {kVocab, kHidden}, ShardSpec::split(0), normal, tp, kPadded);
      embed.tied_owner = true;
      units.push_back({"embed", {&embed}, stage, 0});
      std::vector<Parameter*> block{
          &add("layers.0.norm.weight", {kHidden}, ShardSpec::replicate(), {Init::Kind::kOne}, tp),
          &add("layers.0.attn.qkv.weight", {12, kHidden}, ShardSpec::split(0, 3), normal, tp),
          &add("layers.0.attn.qkv.bias", {12}, ShardSpec::split(0, 3), normal, tp),
          &add("layers.0.attn.out.weight", {kHidden, 24}, ShardSpec::split(1), normal, tp),
          &add("layers.0.attn.out.bias", {kHidden}, ShardSpec::replicate(), zero, tp)};
      units.push_back({"layers.0", block, stage, 1});
    }
    if (mesh.last_stage()) {
      Parameter& head = add("head.weight", {kVocab, kHidden}, ShardSpec::split(0), normal, tp, kPadded);
      head.tied_to = "embed.weight";
      units.push_back({"head", {&head}, stage, 2});
    }
  }
};

// A rank: mesh, model and store on the CPU.
struct Rank {
  Mesh mesh;
  ToyModel model;
  ParamStore store;
  Rank(MeshShape shape, GroupFactory& f, ZeroOptions zero = {})
      : mesh(shape, f), model(mesh), store(model.units, kUnits, zero, mesh, cpu_backend(), {}) {}
  int dp() const { return mesh.coord(Axis::kDp); }
  // The tied copy has no gradient of its own.
  bool adds_to_owner() const { return model.params.back().adds_to != nullptr; }
};

inline void on_ranks(MeshShape shape, const std::function<void(GroupFactory&)>& body) {
  INFO("tp " << shape.tp << " pp " << shape.pp << " dp " << shape.dp);
  for (const std::string& error : suite::run_threads(shape.world(), body)) CHECK(error == "");
}

// Logical index of local element i of p, -1: padding.
inline int64_t logical(const Rank& r, const Parameter& p, int64_t i) {
  return logical_offset(view_of(p, r.mesh.all_coordinates()), i);
}

// Small integers: every sum and square below is exact.
inline float gradient(const std::string& name, int64_t element, int dp_rank) {
  return static_cast<float>(splitmix64(fnv1a64(name) + static_cast<uint64_t>(element * 31 + dp_rank)) % 9) - 4;
}

// body(parameter) while its unit is acquired and its values are gathered.
inline void for_each_readable(Rank& r, const std::function<void(Parameter&)>& body) {
  for (const UnitSpec& s : r.model.units) {
    r.store.unit(s.name).acquire({});
    for (Parameter* p : s.params) body(*p);
    r.store.unit(s.name).release({});
  }
}

struct Perturb {
  std::string name;
  int64_t element = -1;
  int dp = 0;
  float factor = 1;
};  // +1 on the gradient of one logical element on one dp rank; everything times factor

// Emulates the backward: for every unit in reverse, writes its gradients, then calls grads_ready.
inline void backward(
    Rank& r, const Perturb& perturb = {}, const std::string& skip = "", const std::function<void()>& pause = [] {}) {
  const int stage = r.mesh.coord(Axis::kPp);
  r.store.begin_step();
  r.store.begin_backward(stage, 0, true);
  for (auto unit = r.model.units.rbegin(); unit != r.model.units.rend(); ++unit) {
    for (Parameter* p : unit->params) {
      if (p->name == skip) continue;
      const auto [grad, adds] = grad_dst(*p);
      GT_CHECK(adds == (p->tied_owner && r.adds_to_owner()), "the first writer of a step must overwrite");
      for (int64_t i = 0; i < grad.numel(); ++i) {
        const int64_t at = logical(r, *p, i);
        float g = at < 0 ? 0 : gradient(p->name, at, r.dp());
        if (p->name == perturb.name && at == perturb.element && r.dp() == perturb.dp) g += 1;
        g *= perturb.factor;
        const Tensor one = grad.view({grad.numel()}).slice(i, 1);
        if (adds) g += *one.as<float>();
        if (one.dtype == DType::kF32)
          *one.as<float>() = g;
        else
          cpu_backend().ops->cast({.src = {reinterpret_cast<std::byte*>(&g), {1}, DType::kF32, {}}, .dst = one}, {});
      }
    }
    pause();
    r.store.unit(unit->name).grads_ready({});
  }
  r.store.reduce_grads(stage);
  pause();
  r.store.reduce_tied();
  r.store.finish_reduction();
}

// Every stage, with both reduction modes where there are two. All units of stage 3 are sharded.
inline std::vector<ZeroOptions> all_stages(int64_t bucket = 1, bool overlap = true) {
  std::vector<ZeroOptions> out;
  for (int stage : {0, 1, 2, 3})
    for (GradReduce reduce : {GradReduce::kEnd, GradReduce::kEach})
      if (stage >= 2 || reduce == GradReduce::kEnd) out.push_back({stage, bucket, overlap, reduce, 1, 0});
  return out;
}
inline std::string text(const ZeroOptions& z) {
  return cat("zero ", z.stage, " grad_reduce ", static_cast<int>(z.grad_reduce), " bucket ", z.bucket_bytes,
             z.overlap ? " overlap" : "");
}

// The reduced gradient of one logical element: over dp, and over both copies of the tied table.
inline double reduced(const std::string& name, int64_t element, int dp, const Perturb& perturb = {}) {
  double sum = 0;
  const bool tied = name == "embed.weight" || name == "head.weight";
  for (const std::string& n :
       tied ? std::vector<std::string>{"embed.weight", "head.weight"} : std::vector<std::string>{name})
    for (int i = 0; i < dp; ++i)
      sum += gradient(n, element, i) + (n == perturb.name && element == perturb.element && i == perturb.dp ? 1 : 0);
  return sum;
}

inline const std::map<std::string, int64_t>& logical_sizes() {
  static const std::map<std::string, int64_t> kSizes{
      {"embed.weight", kVocab * kHidden},         {"layers.0.norm.weight", kHidden},
      {"layers.0.attn.qkv.weight", 12 * kHidden}, {"layers.0.attn.qkv.bias", 12},
      {"layers.0.attn.out.weight", kHidden * 24}, {"layers.0.attn.out.bias", kHidden}};
  return kSizes;
}

// Logical tensors assembled from the saved views, and how often each element occurred.
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

inline const std::vector<MeshShape>& shapes() {
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

}  // namespace gt::toy_store
