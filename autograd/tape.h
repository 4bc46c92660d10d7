// The autograd tape: the forward appends nodes in execution order, the backward pops them. Execution order is a
// topological order, so there is no graph search, no reference count on nodes and no allocation per node. Independent
// of ranks and models.
//
// Memory: outputs come from the arena, which is rolled back as their node is popped. Activation gradients come from the
// pool and live from their first writer to the node that consumes them.
#pragma once
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

#include "autograd/parameter.h"
#include "kernels/core/memory.h"
#include "kernels/ops.h"

namespace gt {

struct Var {
  Tensor value;
  int32_t id = -1;    // gradient slot on the tape; -1: no gradient flows here
  int32_t home = -1;  // slot of a value that may be discarded and rebuilt; -1: the value is permanent
};

// kInput defers weight gradients to run_deferred(), which is the pass kWeight, for zero-bubble schedules.
enum class Pass : uint8_t { kFull, kInput, kWeight };

class Backprop;
struct Fp8Grad;  // autograd/fp8_tensor.h

// By-products of dL/dy that the op which made y requests from the rule that computes all of dL/dy.
struct GradRequest {
  Parameter* bias = nullptr;  // a bias that was added to every row of y: its gradient, the column sums of dL/dy
  Fp8Grad* fp8 = nullptr;     // dL/dy as FP8 data; points into what the op has saved
  bool bias_done = false;     // the bias gradient has been written
};

// Backward rule of an op: computes gradients of its inputs, or of its parameters, from what it saved.
template <class Saved>
using Rule = void (*)(const std::type_identity_t<Saved>&, Backprop&);

class Tape {
 public:
  Tape(Arena& activations, Pool& grads, const OpTable& ops, Stream stream, size_t max_nodes = 8192);

  const OpTable& ops() const { return ops_; }
  Stream stream() const { return stream_; }
  Arena& activations() { return activations_; }

  // -- forward ------------------------------------------------------------------------------------
  Var input(Tensor t, bool needs_grad);
  Var output(Shape s, DType t) { return {activations_.alloc(s, t), recording_ ? new_slot() : -1}; }
  // An output that aliases an existing tensor (views, in-place ops).
  Var output_of(Tensor t) { return {t, recording_ ? new_slot() : -1}; }
  // The same value with a gradient slot of its own.
  Var view_of(const Var& x) { return {x.value, recording_ ? new_slot() : -1, x.home}; }
  // An output in the pool, which may be discarded once the ops that read it have run. Requires: no rule reads it, or a
  // node recorded after them rebuilds it (Backprop::rebuild). Rules read it through Backprop::value.
  Var transient(Shape s, DType t, int64_t rows = 0);  // rows: see bound()
  // A value that only the backward computes (Backprop::rebuild); it takes no memory before.
  Var later(Shape s, DType t) { return {{nullptr, s, t, stream_.device}, -1, recording_ ? new_slot() : -1}; }
  void discard(const Var& y) {
    if (y.home >= 0) drop(slot(y.home));
  }
  // Of a value whose number of rows the data decides: its gradient, and its value rebuilt, take memory for `rows` of
  // them. So the pool holds what was planned, in the same places.
  void bound(const Var& y, int64_t rows) {
    if (y.id >= 0) slot(y.id).rows = rows;
    if (y.home >= 0) slot(y.home).rows = rows;
  }
  // Requests by-products of dL/dy. The rule of the op that made y computes them, unless the rule that computes dL/dy
  // does so in the same pass (Backprop::requested).
  void request(const Var& y, const GradRequest& r) {
    if (y.id >= 0) slot(y.id).request = r;
  }
  // dL/dx is dL/dy unchanged: the rule that computes dL/dy also serves x's request for FP8 data, besides y's own
  // request.
  void forward_request(const Var& y, const Var& x) {
    if (y.id >= 0 && x.id >= 0) slot(y.id).request.fp8 = slot(x.id).request.fp8;
  }
  Tensor scratch(Shape s, DType t) { return activations_.alloc(s, t); }
  // Host memory of `count` numbers, undefined, that a node recorded after this call may refer to.
  int64_t* host_numbers(int64_t count);

  // Appends a node. `saved` is copied into the tape: trivially copyable, some hundred bytes. `input` computes gradients
  // of inputs, `weight` those of parameters, which Pass::kInput defers; either may be null. Returns the copy, whose
  // address is stable until the backward is complete; nullptr if nothing is recorded.
  template <class Saved>
  Saved* record(const Saved& saved, Rule<Saved> input, Rule<Saved> weight = nullptr) {
    static_assert(std::is_trivially_copyable_v<Saved>);
    if (!recording_) return nullptr;
    struct Record {
      Saved saved;
      Rule<Saved> input, weight;
    };
    auto* record = new (push(sizeof(Record), alignof(Record))) Record{saved, input, weight};
    const Fn run_input = [](const void* p, Backprop& b) {
      const auto& r = *static_cast<const Record*>(p);
      r.input(r.saved, b);
    };
    const Fn run_weight = [](const void* p, Backprop& b) {
      const auto& r = *static_cast<const Record*>(p);
      r.weight(r.saved, b);
    };
    finish_node(input ? run_input : nullptr, weight ? run_weight : nullptr, record);
    return &record->saved;
  }

  bool recording() const { return recording_; }
  void set_recording(bool on) { recording_ = on; }
  size_t size() const { return nodes_.size(); }

  // -- backward -----------------------------------------------------------------------------------
  void seed(const Var& y, Tensor dy);  // sets the upstream gradient of y; dy stays the caller's
  void backward(size_t down_to = 0, Pass pass = Pass::kFull);
  void run_deferred();  // weight gradients left by Pass::kInput, in backward order
  Tensor grad(const Var& v) { return slot(v.id).grad; }
  void reset();  // between microbatches: empties the tape, rolls the arena back to its mark at
                 // construction

 private:
  friend class Backprop;
  using Fn = void (*)(const void*, Backprop&);
  struct Node {
    Fn input, weight;
    const void* saved;
    size_t host_mark, first_slot;
    Arena::Mark mark;
  };
  struct Slot {
    Tensor grad;
    bool owned = false;
    GradRequest request;
    int64_t rows = 0;  // memory for so many at least
  };
  struct Deferred {
    Fn weight;
    const void* saved;
  };

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
  std::unique_ptr<std::byte[]> host_;  // saved structs, bump allocated; untouched pages cost nothing
  size_t host_size_, host_top_ = 0, host_mark_ = 0;
  std::vector<Node> nodes_;
  std::vector<Slot> slots_;
  std::vector<Deferred> deferred_;
  size_t slots_begin_ = 0;   // first slot of the node being built
  Arena::Mark base_, mark_;  // at construction; at the start of the node being built
  bool recording_ = true;
};

// Interface of a running backward to its rules.
class Backprop {
 public:
  Backprop(Tape& t, Pass p) : tape_(t), pass_(p) {}
  const OpTable& ops() const { return tape_.ops_; }
  Stream stream() const { return tape_.stream_; }
  Tape& tape() { return tape_; }
  Pass pass() const { return pass_; }

  Tensor grad(const Var& y) { return tape_.slot(y.id).grad; }  // upstream gradient; empty if none reached y
  bool needs_grad(const Var& x) const { return x.id >= 0; }
  // Returns a forward value, at its current address. Rules read the values of their operands through this.
  Tensor value(const Var& x) {
    if (x.home < 0) return x.value;
    const Tensor now = tape_.slot(x.home).grad;
    GT_CHECK(now, "a discarded value is read before it is rebuilt");
    return now.view(x.value.shape);
  }
  // Allocates a discarded value; it lives until the node that made it is popped.
  Tensor rebuild(const Var& y) { return dst({y.value, y.home}).tensor; }
  // Frees a rebuilt value that no rule reads any more before its node is popped, which after Pass::kInput is at the end
  // of the microbatch.
  void release(const Var& y) { tape_.discard(y); }
  GradDst dst(const Var& x);  // where to write dL/dx: the first writer overwrites, later ones add
  GradDst dst(Parameter& p) { return grad_dst(p); }
  // For a rule that is about to compute all of dL/dx: returns the requests to serve in the same pass. None if dL/dx
  // already has contributions; nothing may be added to dL/dx afterwards.
  // bias: where to write the column sums, which is mandatory if it has data. Empty if weight gradients are deferred or
  // the bias gradient is not allocated. fp8: the rule records there what it writes; may be nullptr.
  struct Requested {
    GradDst bias = {};
    Fp8Grad* fp8 = nullptr;
  };
  Requested requested(const Var& x);
  // True if the bias gradient that y's request names was computed together with dL/dy.
  bool bias_done(const Var& y) const { return tape_.slot(y.id).request.bias_done; }
  // Sets dL/dx to this tensor, which is dL/dy (or the caller's): moved, not copied. Adds if x already has a gradient.
  void forward_grad(const Var& x, Tensor dy);
  // From the pool; release with free(). rows: Tape::bound.
  Tensor scratch(Shape s, DType t, int64_t rows = 0) { return tape_.grads_.alloc(s, t, rows); }
  void free(Tensor t) { tape_.grads_.free(t); }
  // True if only y's slot refers to the memory of its gradient, so that the rule consuming it may overwrite it. Never
  // true of a gradient set by seed(): that stays the caller's.
  bool sole_owner(const Var& y) const {
    const Tape::Slot& s = tape_.slot(y.id);
    return s.owned && tape_.grads_.uses(s.grad) == 1;
  }

 private:
  Tape& tape_;
  Pass pass_;
};

}  // namespace gt
