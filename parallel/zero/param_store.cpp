#include "parallel/zero/param_store.h"

#include <algorithm>

#include "kernels/core/rng.h"
#include "parallel/zero/init.h"

namespace gt {

// One scope's flat buffers and where its reduction stands.
struct ParamStore::Scope : ParamScope {
  ParamStore& store;
  ScopeSpec spec;
  FlatLayout layout;
  Buffer values, grads;
  bool alias_owner = false;  // tied copy on the owner's rank: no values of its own
  Scope* owner = nullptr;    // the owner of the tied weight, when it is on this rank
  bool last_backward = false;
  enum class Phase : uint8_t { kOpen, kReady, kReducing, kReduced } phase = Phase::kOpen;
  Work work;

  Scope(ParamStore& s, ScopeSpec sp) : store(s), spec(std::move(sp)) {}

  bool tied_copy() const { return !spec.params.front()->tied_to.empty(); }
  Tensor flat_values() const { return (alias_owner ? owner->values : values).tensor({layout.size}, DType::kF32); }
  Tensor flat_grads() const { return grads.tensor({layout.size}, DType::kF32); }
  Tensor own(Tensor flat) const { return flat.slice(layout.shard * store.mesh_.coord(Axis::kDp), layout.shard); }

  void acquire(Stream) override {}
  void release(Stream) override {}
  void grads_ready(Stream) override {
    if (!last_backward || !store.options_.overlap || phase != Phase::kOpen) return;
    phase = Phase::kReady;
    store.bucket_.push_back(this);
    store.bucket_fill_ += layout.size * size_of(DType::kF32);
    if (store.bucket_fill_ >= store.options_.bucket_bytes) store.launch_bucket();
  }
};

ParamStore::ParamStore(std::vector<ScopeSpec> specs, int total_scopes, const ZeroOptions& options, const Mesh& mesh,
                       const Backend& backend, Stream compute)
    : mesh_(mesh), options_(options), backend_(backend), compute_(compute), total_scopes_(total_scopes) {
  GT_CHECK(options.stage == 0 || options.stage == 1, "ZeRO stage ", options.stage);
  const auto allocate = [&](int64_t elements) {
    return Buffer(elements * size_of(DType::kF32), compute.device, *backend.device);
  };
  for (ScopeSpec& spec : specs) {
    scopes_.push_back(std::make_unique<Scope>(*this, std::move(spec)));
    Scope& s = *scopes_.back();
    std::vector<int64_t> numels;
    for (const Parameter* p : s.spec.params) numels.push_back(p->local_shape.numel());
    s.layout = flat_layout(numels, mesh.size(Axis::kDp));
    for (auto& other : scopes_)
      if (s.tied_copy() && other->spec.params.front()->name == s.spec.params.front()->tied_to) s.owner = other.get();
    s.alias_owner = s.owner != nullptr;
    if (!s.alias_owner) s.values = allocate(s.layout.size);
    s.grads = allocate(s.layout.size);
    // The padding at the end stays 0 for good; all else is written before it is read.
    const auto zero_padding = [&](const Buffer& b) {
      const int64_t used = (s.layout.size - s.layout.pad) * size_of(DType::kF32);
      backend.device->zero(b.data() + used, b.bytes() - used, compute);
    };
    zero_padding(s.grads);
    if (!s.alias_owner) zero_padding(s.values);
    for (size_t i = 0; i < s.spec.params.size(); ++i) {
      Parameter& p = *s.spec.params[i];
      p.value = s.flat_values().slice(s.layout.offset[i], numels[i]).view(p.local_shape);
      p.grad = s.flat_grads().slice(s.layout.offset[i], numels[i]).view(p.local_shape);
      p.version = 1;
    }
  }

  // Update ranges: neighbours with the same rule are one range. Stage 0 updates everything, stage 1 its own shard.
  for (size_t k = 0; k < scopes_.size(); ++k) {
    Scope& s = *scopes_[k];
    if (s.alias_owner) continue;
    const int64_t from = options.stage == 0 ? 0 : s.layout.shard * mesh.coord(Axis::kDp);
    const int64_t to = options.stage == 0 ? s.layout.size : from + s.layout.shard;
    for (size_t i = 0; i < s.spec.params.size(); ++i) {
      const int64_t begin = std::max(from, s.layout.offset[i]);
      const int64_t end = std::min(to, s.layout.offset[i] + s.spec.params[i]->local_shape.numel());
      if (begin >= end) continue;
      const bool decay = s.spec.params[i]->decay;
      if (!ranges_.empty() && ranges_.back().scope == static_cast<int>(k) && ranges_.back().decay == decay) {
        const int64_t first = ranges_.back().at + from;
        ranges_.back().value = s.flat_values().slice(first, end - first);
        ranges_.back().grad = s.flat_grads().slice(first, end - first);
      } else {
        ranges_.push_back({s.flat_values().slice(begin, end - begin), s.flat_grads().slice(begin, end - begin), decay,
                           static_cast<int>(k), begin - from});
      }
    }
  }
  cut_pieces();
}

void ParamStore::cut_pieces() {
  const int dp = mesh_.coord(Axis::kDp);
  for (size_t k = 0; k < scopes_.size(); ++k) {
    const Scope& s = *scopes_[k];
    if (s.alias_owner) continue;
    const auto first_tensor = static_cast<int>(tensors_.size());
    tensors_.insert(tensors_.end(), s.spec.params.begin(), s.spec.params.end());
    for (size_t j = 0; j < ranges_.size(); ++j) {
      const UpdateRange& r = ranges_[j];
      if (r.scope != static_cast<int>(k)) continue;
      const int64_t from = r.at + (options_.stage == 0 ? 0 : s.layout.shard * dp), to = from + r.value.numel();
      for (int shard = 0; shard < mesh_.size(Axis::kDp); ++shard)
        for (const FlatSegment& g : s.layout.segments[static_cast<size_t>(shard)]) {
          const int64_t begin = std::max(from, g.at), end = std::min(to, g.at + g.count);
          if (begin >= end) continue;
          const bool split = s.spec.params[static_cast<size_t>(g.tensor)]->shard.kind == ShardSpec::Kind::kSplit;
          pieces_.push_back({static_cast<int>(j), begin - from, end - begin, first_tensor + g.tensor,
                             shard == dp && (split || mesh_.coord(Axis::kTp) == 0)});
        }
    }
  }
}

ParamStore::~ParamStore() = default;

void ParamStore::init(uint64_t seed, int threads) {
  for (auto& s : scopes_) {
    if (s->alias_owner) continue;
    for (Parameter* p : s->spec.params) {
      const std::string& name = p->tied_to.empty() ? p->name : p->tied_to;
      init_parameter(*p, stream_key(seed, "init/" + name), mesh_.coord(Axis::kTp), mesh_.size(Axis::kTp), threads,
                     *backend_.device, compute_);
    }
  }
  for (Parameter* p : parameters()) ++p->version;
}

ParamScope& ParamStore::scope(const std::string& name) {
  for (auto& s : scopes_)
    if (s->spec.name == name) return *s;
  GT_CHECK(false, "no parameter scope named ", name, " on this rank");
  return *scopes_.front();
}

void ParamStore::begin_step() {
  for (auto& s : scopes_) {
    s->phase = Scope::Phase::kOpen;
    s->last_backward = false;
    for (Parameter* p : s->spec.params) p->grad_dirty = false;
  }
  bucket_.clear();
  bucket_fill_ = 0;
}

void ParamStore::begin_backward(int stage, int, bool last) {
  for (auto& s : scopes_)
    if (s->spec.stage == stage) s->last_backward = last;
}

// Gradients of `partial` parameters become sums over tp, equal on every tp rank, before anything else reads them. One
// collective for each run of such neighbours in the flat buffer; elements are added in rank order, so neither runs nor
// buckets nor the moment change a bit.
void ParamStore::sum_partial(Scope& s) {
  const std::vector<Parameter*>& params = s.spec.params;
  const auto partial = [&](size_t i) { return params[i]->shard.kind == ShardSpec::Kind::kPartial; };
  ProcessGroup& tp = mesh_.group(Axis::kTp);
  summing_.clear();
  for (size_t begin = 0, end = 0; begin < params.size(); begin = end) {
    for (end = begin + 1; end < params.size() && partial(end) == partial(begin);) ++end;
    if (!partial(begin)) continue;
    const int64_t at = s.layout.offset[begin], to = s.layout.offset[end - 1] + params[end - 1]->local_shape.numel();
    summing_.push_back(tp.all_reduce(s.flat_grads().slice(at, to - at), ReduceOp::kSum, compute_));
  }
  for (Work& w : summing_) w.wait(compute_);
}

void ParamStore::launch(Scope& s) {
  for (const Parameter* p : s.spec.params)
    GT_CHECK(p->grad_dirty, "parameter ", p->name, " got no gradient in this step");
  s.phase = Scope::Phase::kReducing;
  sum_partial(s);
  s.work = mesh_.group(Axis::kDp).reduce_scatter(s.flat_grads(), s.own(s.flat_grads()), compute_);
}

void ParamStore::launch_bucket() {
  for (Scope* s : bucket_) launch(*s);
  bucket_.clear();
  bucket_fill_ = 0;
}

void ParamStore::reduce_grads(int stage) {
  launch_bucket();
  // Reverse execution order, like the buckets: every rank of the group launches in the same order.
  for (auto it = scopes_.rbegin(); it != scopes_.rend(); ++it)
    if ((*it)->spec.stage == stage && (*it)->phase == Scope::Phase::kOpen) launch(**it);
}

void ParamStore::reduce_tied() {
  for (auto& s : scopes_) {
    const bool is_owner_here =
        std::any_of(scopes_.begin(), scopes_.end(), [&](auto& o) { return o->owner == s.get(); });
    if (s->owner != nullptr) {  // both copies on this rank: owner + copy, the order of first + last stage
      for (Scope* both : {s->owner, s.get()}) {
        both->work.wait(compute_);
        both->phase = Scope::Phase::kReduced;
      }
      backend_.ops->axpy({.x = s->own(s->flat_grads()), .y = s->own(s->owner->flat_grads())}, compute_);
    } else if (mesh_.ends().size() == 2 && !is_owner_here) {
      const Parameter& p = *s->spec.params.front();
      if (p.tied_to.empty() && !p.tied_owner) continue;
      s->work.wait(compute_);
      s->phase = Scope::Phase::kReduced;
      mesh_.ends().all_reduce(s->own(s->flat_grads()), ReduceOp::kSum, compute_).wait(compute_);
    }
  }
}

void ParamStore::finish_reduction() {
  for (auto& s : scopes_) {
    GT_CHECK(s->phase == Scope::Phase::kReducing || s->phase == Scope::Phase::kReduced, "gradients of ", s->spec.name,
             " were never reduced");
    s->work.wait(compute_);
    s->phase = Scope::Phase::kReduced;
  }
  if (options_.stage != 0) return;
  for (auto& s : scopes_)
    if (!s->alias_owner)
      s->work = mesh_.group(Axis::kDp).all_gather(s->own(s->flat_grads()), s->flat_grads(), compute_);
  for (auto& s : scopes_) s->work.wait(compute_);
}

void ParamStore::norm_squares(Tensor norms) {
  GT_CHECK(norms.numel() == total_scopes_ && norms.dtype == DType::kF64, "one f64 entry per scope of the model");
  backend_.device->zero(norms.data, norms.bytes(), compute_);
  for (auto& s : scopes_) {
    if (s->tied_copy()) continue;  // counted once, by the owner
    for (const FlatSegment& g : s->layout.segments[static_cast<size_t>(mesh_.coord(Axis::kDp))]) {
      const Parameter& p = *s->spec.params[static_cast<size_t>(g.tensor)];
      if (p.shard.kind != ShardSpec::Kind::kSplit && mesh_.coord(Axis::kTp) != 0) continue;
      backend_.ops->sum_squares(
          {.x = s->flat_grads().slice(g.at, g.count), .out = norms.slice(s->spec.index, 1), .accumulate = true},
          compute_);
    }
  }
}

int ParamStore::num_scopes() const { return static_cast<int>(scopes_.size()); }

int64_t ParamStore::state_elements(int scope) const {
  const Scope& s = *scopes_[static_cast<size_t>(scope)];
  if (s.alias_owner) return 0;
  return options_.stage == 0 ? s.layout.size : s.layout.shard;
}

void ParamStore::publish() {
  if (options_.stage == 1) {
    for (auto& s : scopes_)
      if (!s->alias_owner)
        s->work = mesh_.group(Axis::kDp).all_gather(s->own(s->flat_values()), s->flat_values(), compute_);
    for (auto& s : scopes_) s->work.wait(compute_);
  }
  for (auto& s : scopes_)
    for (Parameter* p : s->spec.params) ++p->version;
}

void ParamStore::append_views(const std::string& group, std::span<const Tensor> flat_state,
                              std::vector<ShardView>& out) const {
  GT_CHECK(flat_state.size() == scopes_.size(), "one flat state buffer per scope");
  const int dp = mesh_.coord(Axis::kDp);
  for (size_t k = 0; k < scopes_.size(); ++k) {
    const Scope& s = *scopes_[k];
    if (s.alias_owner) continue;
    // Saved: this rank's own shard, at every stage. Read besides, at stage 0 or for values: the rest of what it holds.
    const int64_t held = flat_state[k].numel(), from = held == s.layout.size ? 0 : s.layout.shard * dp;
    for (int r = 0; r < mesh_.size(Axis::kDp); ++r)
      for (const FlatSegment& g : s.layout.segments[static_cast<size_t>(r)]) {
        if (g.at < from || g.at + g.count > from + held) continue;
        const Parameter& p = *s.spec.params[static_cast<size_t>(g.tensor)];
        const bool dealt_here = p.shard.kind == ShardSpec::Kind::kSplit || mesh_.coord(Axis::kTp) == 0;
        out.push_back({.name = group + "/" + (p.tied_to.empty() ? p.name : p.tied_to),
                       .data = flat_state[k].slice(g.at - from, g.count),
                       .full = p.full_shape, .local = p.local_shape, .shard = p.shard,
                       .tp_rank = mesh_.coord(Axis::kTp), .tp_size = mesh_.size(Axis::kTp),
                       .pad_rows = p.pad_rows, .begin = g.begin,
                       .save = r == dp && !s.tied_copy() && dealt_here});
      }
  }
}

std::vector<ShardView> ParamStore::value_views() const {
  std::vector<Tensor> flat;
  for (const auto& s : scopes_) flat.push_back(s->flat_values());
  std::vector<ShardView> out;
  append_views("master", flat, out);
  return out;
}

std::vector<ShardView> ParamStore::grad_views() const {
  std::vector<Tensor> flat;
  for (const auto& s : scopes_) flat.push_back(s->flat_grads());
  std::vector<ShardView> out;
  append_views("grad", flat, out);
  return out;
}

std::vector<Parameter*> ParamStore::parameters() const {
  std::vector<Parameter*> out;
  for (const auto& s : scopes_) out.insert(out.end(), s->spec.params.begin(), s->spec.params.end());
  return out;
}

int64_t ParamStore::local_elements() const {
  int64_t n = 0;
  for (const auto& s : scopes_)
    for (const Parameter* p : s->spec.params) n += s->alias_owner ? 0 : p->local_shape.numel();
  return n;
}

int64_t ParamStore::value_bytes() const {
  int64_t n = 0;
  for (const auto& s : scopes_) n += s->values.bytes();
  return n;
}

int64_t ParamStore::grad_bytes() const {
  int64_t n = 0;
  for (const auto& s : scopes_) n += s->grads.bytes();
  return n;
}

}  // namespace gt
