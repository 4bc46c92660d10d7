// Owns every parameter's bytes on this rank: flat values and flat f32 gradients, one pair a scope, and which part of
// them this data-parallel rank is responsible for. ZeRO stages 0 and 1 differ only in what is gathered after the
// gradient reduction (0: gradients, every rank updates all; 1: each rank updates its shard, values are gathered). Both
// reduce by reduce-scatter on the same layout, so they agree bit for bit.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "autograd/parameter.h"
#include "kernels/backend.h"
#include "kernels/core/memory.h"
#include "parallel/mesh.h"
#include "parallel/zero/flat_layout.h"
#include "parallel/zero/shard_view.h"

namespace gt {

// Parameters that are gathered and reduced together. `index`: place in the whole model's scope list, equal on every
// rank and under every pp, so that norms add up in one order. A tied copy is alone in its scope, and so is its owner.
struct ScopeSpec {
  std::string name;
  std::vector<Parameter*> params;
  int stage = 0;  // virtual stage
  int index = 0;
};

struct ZeroOptions {
  int stage = 1;                          // 0 or 1
  int64_t bucket_bytes = 25 << 20;        // scopes are merged until a bucket holds this much gradient
  bool overlap = true;                    // launch buckets during the backward; off: at the end of the stage
};

// What the optimizer updates: contiguous ranges that share a rule. All tensors 1-D of equal length.
struct UpdateRange {
  Tensor value, grad;   // f32 at O0: the value is its own master
  bool decay = true;
  int scope = 0;        // local scope number
  int64_t at = 0;       // element offset within this rank's part of the scope (state buffers use the same offsets)
};

// A range cut by logical tensors (and, at stage 0, by shards, so that sums over pieces have the same bits at every
// stage), for optimizers that need norms of whole tensors.
struct UpdatePiece {
  int range = 0;              // in ranges()
  int64_t at = 0, count = 0;  // elements of the range's tensors
  int tensor = 0;             // in tensors()
  bool owned = true;  // this rank counts these elements when a tensor is summed up over the ranks of its stage
};

class ParamStore {
 public:
  // total_scopes: scopes of the whole model. Allocates; values are undefined until init() or a load.
  ParamStore(std::vector<ScopeSpec> scopes, int total_scopes, const ZeroOptions&, const Mesh&, const Backend&,
             Stream compute);
  ~ParamStore();

  // Fills values by the counter-based rule: equal under every layout. `threads` host threads.
  void init(uint64_t seed, int threads);

  ParamScope& scope(const std::string& name);

  // -- one step, called through the executor's hooks
  void begin_step();
  void begin_backward(int stage, int microbatch, bool last);
  void reduce_grads(int stage);   // launches what has not been launched
  void reduce_tied();             // adds the two copies' gradients, first-stage + last-stage order
  void finish_reduction();        // everything has landed; stage 0 gathers; a parameter without gradient is an error

  // Writes the sum of squares of the gradients per scope, over the elements this rank owns (shard position at every
  // stage; tp-split or tp place 0; not a tied copy), 0 for scopes of other ranks: out f64 [total_scopes]. Summed over
  // the world it is the global norm squared, with entries in the model's order whatever the layout.
  void norm_squares(Tensor out);

  // What to update, and how many elements of state a local scope needs.
  std::span<const UpdateRange> ranges() const { return ranges_; }
  std::span<const UpdatePiece> pieces() const { return pieces_; }
  const std::vector<const Parameter*>& tensors() const { return tensors_; }  // same list on all ranks of a stage
  int num_scopes() const;
  int64_t state_elements(int scope) const;

  void publish();  // values changed: gather (stage 1), new versions

  // Views for checkpoints. `group` "master" gives values; optimizers pass their own flat state buffers (one per local
  // scope).
  void append_views(const std::string& group, std::span<const Tensor> flat_state, std::vector<ShardView>& out) const;
  std::vector<ShardView> value_views() const;
  std::vector<ShardView> grad_views()
      const;  // "grad/…": sums over dp, valid where `save` between finish_reduction and begin_step

  std::vector<Parameter*> parameters() const;
  int64_t local_elements() const;     // parameters held by this rank, padding of the flat buffers excluded
  int64_t value_bytes() const;
  int64_t grad_bytes() const;

 private:
  struct Scope;
  void cut_pieces();
  void launch(Scope&);
  void sum_partial(Scope&);
  void launch_bucket();
  const Mesh& mesh_;
  ZeroOptions options_;
  const Backend& backend_;
  Stream compute_;
  int total_scopes_;
  std::vector<std::unique_ptr<Scope>> scopes_;
  std::vector<UpdateRange> ranges_;
  std::vector<UpdatePiece> pieces_;
  std::vector<const Parameter*> tensors_;
  std::vector<Scope*> bucket_;       // scopes whose gradients are final, not launched yet
  int64_t bucket_fill_ = 0;          // bytes
  std::vector<Work> summing_;        // of sum_partial(); kept for its storage
};

}  // namespace gt
