#include "parallel/zero/reducer.h"

#include <algorithm>

#include "kernels/core/hash/state_hash.h"

namespace gt {

GradReducer::GradReducer(const UnitList& units, const ZeroOptions& options, const Mesh& mesh, const Backend& backend,
                         Stream compute)
    : units_(units), options_(options), mesh_(mesh), backend_(backend), compute_(compute) {}

void GradReducer::allocate(int64_t bytes) {
  pool_ = Pool(Buffer(bytes, compute_.device, *backend_.device));
  bucket_.reserve(units_.size());
  in_flight_.reserve(units_.size());
}

void GradReducer::begin_step() {
  for (auto& s : units_) {
    s->phase = s->frozen ? Phase::kReduced : s->grads_sharded ? Phase::kIdle : Phase::kOpen;
    s->last_backward = s->accumulated = false;
    for (Parameter* p : s->spec.params) p->grad_dirty = false;
  }
  bucket_.clear();
  bucket_fill_ = 0;
}

void GradReducer::add_to(StateHash& f) const {
  f.add(pool_.fingerprint()).add(static_cast<uint64_t>(bucket_fill_)).add(uint64_t{backward_over_});
  for (const UnitState* s : bucket_) f.add(s);
  for (const UnitState* s : in_flight_) f.add(s).add(uint64_t{s->accumulated});
}

void GradReducer::begin_backward(int stage, bool last) {
  for (auto& s : units_)
    if (s->spec.stage == stage) s->last_backward = last;
}

void GradReducer::open(UnitState& s) {
  GT_CHECK(s.grads_sharded, s.spec.name, ": gradients are not sharded, open() is not needed");
  if (s.phase == Phase::kReady) launch_bucket();
  if (s.phase == Phase::kReducing || backward_over_) drain();
  s.open = pool_.alloc({s.layout.size}, s.grad_dtype);
  const Tensor padding = s.open.slice(s.elements(), s.layout.pad);
  backend_.device->zero(padding.data, padding.bytes(), compute_);
  for (Parameter* p : s.spec.params) p->grad_dirty = false;
  s.bind_grads(s.open);
  s.phase = Phase::kOpen;
}

void GradReducer::ready(UnitState& s) {
  const bool now = s.grads_sharded || (s.last_backward && options_.overlap);
  if (now && s.phase == Phase::kOpen) {
    s.phase = Phase::kReady;
    if (s.grads_sharded) s.unbind_grads();
    bucket_.push_back(&s);
    bucket_fill_ += s.layout.size * std::max(size_of(s.grad_dtype), size_of(options_.reduce));
    if (bucket_fill_ >= options_.bucket_bytes) launch_bucket();
  }
  if (!s.grads_sharded || !s.ends_backward) return;
  launch_bucket();  // no gradient of this microbatch waits for the next one
  backward_over_ = true;
}

// Runs once a unit's gradients are final on this rank, before they are reduced over their domain. The one hook for
// anything that must precede the reduction.
void GradReducer::complete_gradients(UnitState& s) {
  if (s.adds_to_owner()) return;
  const Tensor whole = s.grads_sharded ? s.open : s.held_grads();
  for (size_t i = 0; i < s.spec.params.size(); ++i) {
    Parameter& p = *s.spec.params[i];
    if (p.grad_dirty) continue;
    GT_CHECK(options_.allow_unused || s.unused, "parameter ", p.name,
             " got no gradient in this step; if it is meant to have none, set zero.allow_unused to treat it as 0");
    const Tensor none = whole.slice(s.layout.offset[i], p.local_shape.numel());
    backend_.device->zero(none.data, none.bytes(), compute_);
    p.grad_dirty = true;
  }
  sum_partial(s);
  sum_shared_heads(s);
  if (scales(s)) multiply(whole, options_.scale_before);
}

bool GradReducer::scales(const UnitState& s) const { return options_.scale_before != 1 && s.domain.size > 1; }

void GradReducer::multiply(Tensor t, double by) {
  backend_.ops->scale({.x = t, .out = t, .factor = static_cast<float>(by)}, compute_);
}

// Sharded gradients of a unit that nothing wrote in this step: an error naming the parameter, or zeros. Zeros are
// reduced like any gradient, so that all ranks make the same calls.
void GradReducer::complete_unused(UnitState& s) {
  if (!options_.allow_unused && !s.unused) return complete_gradients(s);
  drain();  // one such unit at a time
  open(s);
  s.unbind_grads();  // the next writer reopens them
  launch(s);
  drain();
}

// KV heads that several TP ranks hold: each rank has the gradient of its own query heads. The all-reduce leaves all of
// them with bitwise identical sums, so the replicas stay equal.
void GradReducer::sum_shared_heads(UnitState& s) {
  if (mesh_.kv().size() == 1) return;
  const Tensor whole = s.grads_sharded ? s.open : s.held_grads();
  summing_.clear();
  for (size_t i = 0; i < s.spec.params.size(); ++i) {
    const Parameter& p = *s.spec.params[i];
    if (p.shard.tp().copies(mesh_.size(Axis::kTp)) == 1) continue;
    const int64_t alone = unshared_elements(p, mesh_.size(Axis::kTp)), shared = p.local_shape.numel() - alone;
    summing_.push_back(
        mesh_.kv().all_reduce(whole.slice(s.layout.offset[i] + alone, shared), ReduceOp::kSum, compute_));
  }
  for (Work& w : summing_) w.wait(compute_);
}

// All-reduces the gradients of `partial` parameters over tp before anything else reads them. One collective per run of
// adjacent ones in the flat buffer. Elements are added in rank order, so results do not depend on runs, buckets or
// timing.
void GradReducer::sum_partial(UnitState& s) {
  const std::vector<Parameter*>& params = s.spec.params;
  const auto partial = [&](size_t i) { return params[i]->shard.tp().dim == AxisShard::kPartial; };
  const Tensor whole = s.grads_sharded ? s.open : s.held_grads();
  ProcessGroup& tp = mesh_.group(Axis::kTp);
  summing_.clear();
  for (size_t begin = 0, end = 0; begin < params.size(); begin = end) {
    for (end = begin + 1; end < params.size() && partial(end) == partial(begin);) ++end;
    if (!partial(begin)) continue;
    const int64_t at = s.layout.offset[begin], to = s.layout.offset[end - 1] + params[end - 1]->local_shape.numel();
    summing_.push_back(tp.all_reduce(whole.slice(at, to - at), ReduceOp::kSum, compute_));
  }
  for (Work& w : summing_) w.wait(compute_);
}

void GradReducer::launch(UnitState& s) {
  complete_gradients(s);
  s.phase = Phase::kReducing;
  ProcessGroup& group = *s.domain.group;
  if (converts(s)) return launch_converted(s);
  if (!s.grads_sharded) {
    s.reducing = group.reduce_scatter(s.held_grads(), s.grad_shard(), compute_);
    return;
  }
  // The first sum of a step is written to the shard directly; later ones are added to it when they complete.
  s.reducing = group.reduce_scatter(s.open, s.accumulated ? s.own(s.open) : s.grad_shard(), compute_);
  in_flight_.push_back(&s);
}

// Reduces in another dtype than gradients are stored in. 16-bit reduction: gradients are rounded, and each sum is
// rounded once more in transit. f32 reduction of bf16 gradients: sums are rounded once on arrival. This rank's
// unreduced gradients are not used again. A unit larger than a bucket is sent in chunks; all but the last are waited
// for, which keeps send buffers small.
void GradReducer::launch_converted(UnitState& s) {
  ProcessGroup& group = *s.domain.group;
  const Tensor whole = s.grads_sharded ? s.open : s.held_grads();
  const int64_t piece = chunk_elements(s);
  for (int64_t at = 0; at < s.layout.shard; at += piece) {
    if (at > 0) complete_chunk(s);
    const int64_t n = std::min(piece, s.layout.shard - at);
    s.wire = pool_.alloc({n * group.size()}, options_.reduce);
    s.send_offset = at;
    for (int rank = 0; rank < group.size(); ++rank) {
      const Tensor part = whole.slice(rank * s.layout.shard + at, n);
      backend_.ops->cast({.src = part, .dst = s.wire.slice(rank * n, n)}, compute_);
    }
    s.reducing = group.reduce_scatter(s.wire, s.wire.slice(group.rank() * n, n), compute_);
  }
  in_flight_.push_back(&s);
}

// Elements of each shard in one chunk.
int64_t GradReducer::chunk_elements(const UnitState& s) const {
  constexpr int64_t kAlignment = 64;  // of shards
  const int64_t most = options_.bucket_bytes / size_of(options_.reduce) / s.domain.size;
  return std::clamp<int64_t>(most / kAlignment * kAlignment, kAlignment, std::max(kAlignment, s.layout.shard));
}

// Adds the reduced chunk to the same elements of the shard, or stores it there.
void GradReducer::complete_chunk(UnitState& s) {
  s.reducing.wait(compute_);
  const int64_t n = s.wire.numel() / s.domain.size;
  const Tensor sum = s.wire.slice(s.domain.rank * n, n), shard = s.grad_shard().slice(s.send_offset, n);
  if (s.accumulated)
    backend_.ops->axpy({.x = sum, .y = shard}, compute_);
  else
    backend_.ops->cast({.src = sum, .dst = shard}, compute_);
  pool_.free(s.wire);
  s.wire = {};
}

void GradReducer::launch_bucket() {
  if (bucket_.empty()) return;
  drain();
  for (UnitState* s : bucket_) launch(*s);
  bucket_.clear();
  bucket_fill_ = 0;
  if (!options_.overlap) drain();
}

void GradReducer::land(UnitState& s) {
  s.reducing.wait(compute_);
  if (s.wire)
    complete_chunk(s);
  else if (s.accumulated)
    backend_.ops->axpy({.x = s.own(s.open), .y = s.grad_shard()}, compute_);
  if (!s.grads_sharded) return;
  s.accumulated = true;
  pool_.free(s.open);
  s.open = {};
  s.phase = Phase::kIdle;
}

void GradReducer::drain() {
  for (UnitState* s : in_flight_) land(*s);
  in_flight_.clear();
  backward_over_ = false;
}

void GradReducer::reduce_stage(int stage) {
  launch_bucket();
  // Reverse execution order, as in buckets: every rank of the group launches in the same order.
  for (auto it = units_.rbegin(); it != units_.rend(); ++it) {
    UnitState& s = **it;
    if (s.spec.stage != stage) continue;
    if (s.phase == Phase::kOpen) {
      if (converts(s)) drain();  // one unit's send buffer at a time
      launch(s);
    }
    if (s.grads_sharded && !s.accumulated && s.phase == Phase::kIdle) complete_unused(s);
  }
}

void GradReducer::reduce_tied() {
  drain();
  const auto wait = [&](UnitState& s) {
    s.reducing.wait(compute_);
    if (!s.grads_sharded) s.phase = Phase::kReduced;
  };
  for (auto& s : units_) {
    if (s->frozen) continue;
    if (s->owner != nullptr) {  // both copies on this rank: owner + copy, the order of first + last stage
      wait(*s->owner);
      wait(*s);
      if (!s->adds_to_owner()) backend_.ops->axpy({.x = s->grad_shard(), .y = s->owner->grad_shard()}, compute_);
    } else if (mesh_.embedding_group().size() == 2 && s->copy == nullptr) {
      const Parameter& p = *s->spec.params.front();
      if (p.tied_to.empty() && !p.tied_owner) continue;
      wait(*s);
      s->reducing = mesh_.embedding_group().all_reduce(s->grad_shard(), ReduceOp::kSum, compute_);
    }
  }
}

bool GradReducer::may_finish_late(const UnitState& s) const {
  return s.tied_copy() && s.owner == nullptr && !s.frozen && (options_.stage != 0 || s.domain.size == 1);
}

void GradReducer::finish(UnitState& s) {
  s.reducing.wait(compute_);
  s.phase = Phase::kReduced;
  if (scales(s)) multiply(s.grad_shard(), 1 / options_.scale_before);
}

void GradReducer::finish_tied_copies() {
  for (auto& s : units_)
    if (may_finish_late(*s) && s->phase != Phase::kReduced) finish(*s);
}

void GradReducer::finish(bool tied_copies) {
  launch_bucket();
  drain();
  for (auto& s : units_) {
    if (s->frozen) continue;
    const bool reduced =
        s->grads_sharded ? s->accumulated : s->phase == Phase::kReducing || s->phase == Phase::kReduced;
    GT_CHECK(reduced, "gradients of ", s->spec.name, " were never reduced");
    if (may_finish_late(*s) && !tied_copies)
      s->phase = Phase::kReducing;
    else
      finish(*s);
  }
  if (options_.stage != 0) return;
  for (auto& s : units_)
    if (!s->owner && !s->frozen && s->phase == Phase::kReduced)
      s->reducing = s->domain.group->all_gather(s->grad_shard(), s->held_grads(), compute_);
  for (auto& s : units_)
    if (s->phase == Phase::kReduced) s->reducing.wait(compute_);
}

}  // namespace gt
