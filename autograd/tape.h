// The tape: forward appends nodes in execution order, backward pops them. Execution order already is a topological
// order, so there is no graph search, no reference count on nodes and no allocation per node. It knows no ranks and no
// models.
//
// Memory: outputs come from the arena and are rolled back as their node is popped; activation gradients come from the
// pool and live from their first writer to the node that consumed them.
#pragma once
#include <memory>
#include <new>
#include <vector>

#include "autograd/parameter.h"
#include "kernels/core/memory.h"
#include "kernels/ops.h"

namespace gt {

struct Var {
  Tensor value;
  int32_t id = -1;    // gradient slot on the tape; -1: no gradient flows here
  int32_t home = -1;  // slot that holds a value which may be discarded and rebuilt; -1: the value stays where it is
};

// kInput leaves weight gradients for run_deferred(), which is the pass kWeight: what zero-bubble schedules need.
enum class Pass : uint8_t { kFull, kInput, kWeight };

class Backprop;
struct GradCodes;  // autograd/coded.h

// By-products of a gradient dL/dy: what an op asks of whoever makes the gradient of its result in one piece.
struct GradRequest {
  Parameter* bias = nullptr;  // a bias that was added to every row of y: its gradient, the column sums of dL/dy
  GradCodes* fp8 = nullptr;   // dL/dy as FP8 data; lies in what the op has saved
  bool summed = false;        // the bias has its gradient
};

// How an op differentiates itself. `input` writes gradients of inputs, `weight` gradients of parameters; either may be
// null.
template <class Saved>
struct Rule {
  void (*input)(const Saved&, Backprop&) = nullptr;
  void (*weight)(const Saved&, Backprop&) = nullptr;
};

class Tape {
 public:
  Tape(Arena& activations, Pool& grads, const OpTable& ops, Stream stream, size_t max_nodes = 8192);

  const OpTable& ops() const { return ops_; }
  Stream stream() const { return stream_; }
  Arena& activations() { return activations_; }

  // -- forward ------------------------------------------------------------------------------------
  Var input(Tensor t, bool needs_grad);
  Var output(Shape s, DType t) { return {activations_.alloc(s, t), recording_ ? new_slot() : -1}; }
  // An output that shares its bytes with an existing tensor (views, in-place ops).
  Var output_of(Tensor t) { return {t, recording_ ? new_slot() : -1}; }
  // The same value under a gradient slot of its own.
  Var view_of(const Var& x) { return {x.value, recording_ ? new_slot() : -1, x.home}; }
  // An output that lives in the pool and may be given back as soon as the ops that read it have run: if no rule reads
  // it, or if a node recorded after them rebuilds it (Backprop::rebuild). Rules read it through Backprop::value.
  Var transient(Shape s, DType t);
  // A value that the backward alone makes (Backprop::rebuild); it takes no room before.
  Var later(Shape s, DType t) {
    return {{nullptr, s, t, stream_.device}, -1, recording_ ? new_slot() : -1};
  }
  void discard(const Var& y) { if (y.home >= 0) drop(slot(y.home)); }
  // Requests by-products of dL/dy. The rule of the op that made y makes them, unless whoever makes dL/dy does so in the
  // same pass (Backprop::requested).
  void request(const Var& y, const GradRequest& r) { if (y.id >= 0) slot(y.id).request = r; }
  // x has the gradient of y as it is: whoever makes that serves x's request of FP8 data beside y's own.
  void forward_request(const Var& y, const Var& x) {
    if (y.id >= 0 && x.id >= 0) slot(y.id).request.fp8 = slot(x.id).request.fp8;
  }
  Tensor scratch(Shape s, DType t) { return activations_.alloc(s, t); }

  // `saved` is copied into the tape: trivially copyable, some hundred bytes. Returns the copy, which stays where it is
  // until the backward is through; nullptr where nothing is recorded.
  template <class Saved>
  Saved* record(const Saved& saved, Rule<Saved> rule) {
    static_assert(std::is_trivially_copyable_v<Saved>);
    if (!recording_) return nullptr;
    struct Box { Saved saved; Rule<Saved> rule; };
    auto* box = new (push(sizeof(Box), alignof(Box))) Box{saved, rule};
    finish_node(rule.input ? [](const void* p, Backprop& b) { auto* x = static_cast<const Box*>(p); x->rule.input(x->saved, b); } : Fn{},
                rule.weight ? [](const void* p, Backprop& b) { auto* x = static_cast<const Box*>(p); x->rule.weight(x->saved, b); } : Fn{}, box);
    return &box->saved;
  }

  bool recording() const { return recording_; }
  void set_recording(bool on) { recording_ = on; }
  size_t size() const { return nodes_.size(); }

  // -- backward -----------------------------------------------------------------------------------
  void seed(const Var& y, Tensor dy);  // dy stays the caller's
  void backward(size_t down_to = 0, Pass pass = Pass::kFull);
  void run_deferred();                 // weight gradients left by Pass::kInput, in the order they were met
  Tensor grad(const Var& v) { return slot(v.id).grad; }
  void reset();                        // between microbatches: empty, arena rolled back to where the tape was made

 private:
  friend class Backprop;
  using Fn = void (*)(const void*, Backprop&);
  struct Node { Fn input, weight; const void* saved; size_t host_mark, first_slot; Arena::Mark mark; };
  struct Slot {
    Tensor grad;
    bool owned = false;
    GradRequest request;
  };
  struct Deferred { Fn weight; const void* saved; };

  std::byte* push(size_t bytes, size_t align);
  void finish_node(Fn input, Fn weight, const void* saved);
  int32_t new_slot();
  Slot& slot(int32_t id) {
    GT_DCHECK(id >= 0 && static_cast<size_t>(id) < slots_.size());
    return slots_[static_cast<size_t>(id)];
  }
  void drop(Slot& s);

  Arena& activations_;
  Pool& grads_;
  const OpTable& ops_;
  Stream stream_;
  std::unique_ptr<std::byte[]> host_;  // saved structs, bump allocated; pages never used cost nothing
  size_t host_size_, host_top_ = 0, host_mark_ = 0;
  std::vector<Node> nodes_;
  std::vector<Slot> slots_;
  std::vector<Deferred> deferred_;
  size_t slots_begin_ = 0;       // first slot of the node being built
  Arena::Mark base_, mark_;      // where the tape began; where the node being built began
  bool recording_ = true;
};

// What a Rule sees while it runs.
class Backprop {
 public:
  Backprop(Tape& t, Pass p) : tape_(t), pass_(p) {}
  const OpTable& ops() const { return tape_.ops_; }
  Stream stream() const { return tape_.stream_; }
  Tape& tape() { return tape_; }
  Pass pass() const { return pass_; }

  Tensor grad(const Var& y) { return tape_.slot(y.id).grad; }  // upstream gradient; empty if none reached y
  bool wants(const Var& x) const { return x.id >= 0; }
  // What the forward computed, wherever it is now. Rules read the values of their operands through this.
  Tensor value(const Var& x) {
    if (x.home < 0) return x.value;
    const Tensor now = tape_.slot(x.home).grad;
    GT_CHECK(now, "a discarded value is read before it is rebuilt");
    return now.view(x.value.shape);
  }
  // Room for a discarded value; it lives until the node that made it is popped.
  Tensor rebuild(const Var& y) { return dst({y.value, y.home}).tensor; }
  // No rule reads a rebuilt value any more: gives its bytes back before its node is popped, which after Pass::kInput is
  // at the end of the microbatch.
  void release(const Var& y) { tape_.discard(y); }
  GradDst dst(const Var& x);  // where to write dL/dx: first writer sets, later ones add
  GradDst dst(Parameter& p) { return grad_dst(p); }
  // For a rule that is about to make all of dL/dx: the requests that it serves in the same pass. Nothing where dL/dx has
  // parts; nothing may be added to dL/dx afterwards.
  // bias: where to write the column sums, which are promised where it has data. It has none where weight gradients are
  // deferred, or while the parameter has no room for its gradient. fp8: records there what it makes; may be nullptr.
  struct Requested { GradDst bias = {}; GradCodes* fp8 = nullptr; };
  Requested requested(const Var& x);
  // The gradient of the bias that y's request names was made with dL/dy.
  bool bias_done(const Var& y) const { return tape_.slot(y.id).request.summed; }
  // dL/dx is this tensor, which is y's gradient (or the caller's): moved, not copied. Adds when x has a gradient
  // already.
  void pass_on(const Var& x, Tensor dy);
  Tensor scratch(Shape s, DType t) { return tape_.grads_.alloc(s, t); }  // from the pool; give it back with free()
  void free(Tensor t) { tape_.grads_.free(t); }
  // True when the slot of y alone refers to the bytes of its gradient, so that the rule that consumes it may write over
  // them. Never true of a seed: it stays the caller's, wherever it lives.
  bool sole_owner(const Var& y) const {
    const Tape::Slot& s = tape_.slot(y.id);
    return s.owned && tape_.grads_.uses(s.grad) == 1;
  }

 private:
  Tape& tape_;
  Pass pass_;
};

}  // namespace gt
