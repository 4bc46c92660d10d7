#include "autograd/fp8_tensor.h"

namespace gt {

Tape::Tape(Arena& activations, Pool& grads, const OpTable& ops, Stream stream, size_t max_nodes)
    : activations_(activations),
      grads_(grads),
      ops_(ops),
      stream_(stream),
      host_(std::make_unique_for_overwrite<std::byte[]>(max_nodes * 320)),
      host_size_(max_nodes * 320),
      base_(activations.mark()),
      mark_(base_) {
  nodes_.reserve(max_nodes);
  slots_.reserve(max_nodes);
  deferred_.reserve(max_nodes);
}

Var Tape::input(Tensor t, bool needs_grad) {
  const Var v{t, needs_grad && recording_ ? new_slot() : -1};
  slots_begin_ = slots_.size();  // inputs outlive every node
  return v;
}

Var Tape::transient(Shape s, DType t, int64_t rows) {
  const int32_t home = new_slot();
  slot(home).grad = grads_.alloc(s, t, rows);
  slot(home).owned = true;
  const Var y{slot(home).grad, recording_ ? new_slot() : -1, home};
  bound(y, rows);
  return y;
}

int64_t* Tape::host_numbers(int64_t count) {
  return reinterpret_cast<int64_t*>(push(static_cast<size_t>(count) * sizeof(int64_t), alignof(int64_t)));
}

std::byte* Tape::push(size_t bytes, size_t align) {
  host_mark_ = host_top_;
  host_top_ = (host_top_ + align - 1) / align * align;
  GT_CHECK(host_top_ + bytes <= host_size_ && nodes_.size() < nodes_.capacity(), "the tape is full at ", nodes_.size(),
           " nodes");
  std::byte* p = host_.get() + host_top_;
  host_top_ += bytes;
  return p;
}

void Tape::finish_node(Fn input, Fn weight, const void* saved) {
  nodes_.push_back({input, weight, saved, host_mark_, slots_begin_, mark_});
  slots_begin_ = slots_.size();
  mark_ = activations_.mark();
}

int32_t Tape::new_slot() {
  GT_CHECK(slots_.size() < slots_.capacity(), "the tape has no gradient slot left");
  slots_.push_back({});
  return static_cast<int32_t>(slots_.size()) - 1;
}

void Tape::drop(Slot& s) {
  if (s.grad && s.owned) grads_.free(s.grad);
  s.grad = {};
  s.owned = false;
}

void Tape::seed(const Var& y, Tensor dy) {
  Slot& s = slot(y.id);
  drop(s);
  s.grad = dy;
  s.request.bias_done = false;
}

void Tape::backward(size_t down_to, Pass pass) {
  Backprop bp(*this, pass);
  while (nodes_.size() > down_to) {
    const Node n = nodes_.back();
    nodes_.pop_back();
    if (n.input != nullptr) n.input(n.saved, bp);
    if (n.weight != nullptr && pass == Pass::kFull) n.weight(n.saved, bp);
    if (pass == Pass::kInput) {  // everything a deferred weight gradient may read stays where it is
      if (n.weight != nullptr) deferred_.push_back({n.weight, n.saved});
      continue;
    }
    while (slots_.size() > n.first_slot) {
      drop(slots_.back());
      slots_.pop_back();
    }
    slots_begin_ = slots_.size();
    activations_.rollback(n.mark);
    mark_ = n.mark;
    host_top_ = n.host_mark;
  }
}

void Tape::run_deferred() {
  Backprop bp(*this, Pass::kWeight);
  for (const Deferred& d : deferred_) d.weight(d.saved, bp);
  deferred_.clear();
}

void Tape::reset() {
  for (Slot& s : slots_) drop(s);
  slots_.clear();
  nodes_.clear();
  deferred_.clear();
  slots_begin_ = host_top_ = 0;
  activations_.rollback(base_);
  mark_ = base_;
}

GradDst Backprop::dst(const Var& x) {
  Tape::Slot& s = tape_.slot(x.id);
  const auto own = [&](Tensor t) {
    s.grad = t;
    s.owned = true;
  };
  if (!s.grad) {
    own(tape_.grads_.alloc(x.value.shape, x.value.dtype, s.rows));
    return {s.grad, false};
  }
  const GradRequest& r = s.request;
  GT_CHECK(!r.bias_done, "a gradient ", to_string(x.value.shape), " is added to one whose sums are that of ",
           r.bias->name, " already");
  GT_CHECK(r.fp8 == nullptr || !(r.fp8->has_amax || r.fp8->quantized), "a gradient ", to_string(x.value.shape),
           " is accumulated into one that is already quantized to FP8");
  if (!s.owned || tape_.grads_.uses(s.grad) > 1) {  // shared with another reader: write to a copy
    const Tensor copy = tape_.grads_.alloc(x.value.shape, x.value.dtype, s.rows);
    ops().copy({.src = s.grad.view(x.value.shape), .dst = copy}, stream());
    tape_.drop(s);
    own(copy);
  }
  return {s.grad, true};
}

void Backprop::forward_grad(const Var& x, Tensor dy) {
  if (!needs_grad(x)) return;
  Tape::Slot& s = tape_.slot(x.id);
  if (s.grad) {
    auto [dx, accumulate] = dst(x);
    ops().axpy({.x = dy, .y = dx}, stream());
    return;
  }
  // Ownership of dy: pool blocks are counted; an upstream gradient or a boundary buffer belongs to the caller.
  const bool pooled = tape_.grads_.owns(dy);
  if (pooled) tape_.grads_.retain(dy);
  s.grad = dy.view(x.value.shape);
  s.owned = pooled;
}

Backprop::Requested Backprop::requested(const Var& x) {
  if (!needs_grad(x)) return {};
  Tape::Slot& s = tape_.slot(x.id);
  if (s.grad) return {};
  Requested out{.fp8 = s.request.fp8};
  // Gradients of a unit that the backward has not reached may not be allocated yet. Opening them now would keep them
  // alive together with those of the current unit.
  s.request.bias_done = pass_ == Pass::kFull && s.request.bias != nullptr && s.request.bias->grad;
  if (s.request.bias_done) out.bias = dst(*s.request.bias);
  return out;
}

}  // namespace gt
