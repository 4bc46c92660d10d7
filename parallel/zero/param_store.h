// Owns every parameter's bytes on this rank: flat values and flat gradients, one pair a scope, f32 masters of half
// values (unless these are trained themselves), and which part of them this data-parallel rank is responsible for.
// ZeRO (Rajbhandari et al. 2020) says what of it a rank keeps whole:
//   stage 0: everything; gradients are gathered and every rank updates all;
//   stage 1: values and gradients; each rank updates its shard and values are gathered;
//   stage 2: values; of gradients its shard, where they are reduced microbatch by microbatch (GradReduce::kEach);
//   stage 3: nothing; values are gathered while a scope is used.
// All reduce by reduce-scatter on the same layout, so they agree bit for bit where gradients are reduced once a step.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "autograd/parameter.h"
#include "kernels/backend.h"
#include "kernels/core/memory.h"
#include "parallel/mesh.h"
#include "parallel/zero/flat_layout.h"
#include "parallel/zero/options.h"
#include "parallel/zero/shard_view.h"

namespace gt {

class Fp8Weights;
class GradReducer;
class ValueGatherer;
class WeightQuantizer;
struct ScopeState;

// Parameters that are gathered and reduced together. `index`: place in the whole model's scope list, equal on every
// rank and under every pp, so that norms add up in one order. A tied copy is alone in its scope, and so is its owner.
// Scopes of a stage come in the order in which its forward uses them.
struct ScopeSpec {
  std::string name;
  std::vector<Parameter*> params;
  int stage = 0;  // virtual stage
  int index = 0;
  AxisSet domain{Axis::kDp, Axis::kCp};  // ranks that hold the same parameters: see Mesh::domain
};

// A pass through all scopes of a virtual stage, from its last to its first in a backward.
struct StageVisit {
  int stage;
  bool backward;
};

// Bytes to reserve for what exists for a while only: measured by a dry run on the null backend, or 0 for room for
// everything at once.
struct ZeroMemory {
  int64_t gathered = 0;   // whole values of scopes in use
  int64_t gradients = 0;  // whole gradients on their way to the shards
};

// What the optimizer updates: contiguous ranges that share a rule. All tensors 1-D of equal length.
struct UpdateRange {
  Tensor value, grad;   // value: f32 or half; grad: f32 or bf16
  Tensor master;        // what is trained: f32, or the value itself
  Tensor rounded() const { return master.dtype == value.dtype ? Tensor{} : value; }  // to be written beside the master
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
  int64_t begin = 0;          // its first element in what this rank's tp place holds of the tensor
  bool owned = true;  // this rank counts these elements when a tensor is summed up over the ranks of its stage
};

class ParamStore {
 public:
  // total_scopes: scopes of the whole model. Allocates; values are undefined until init() or a load.
  ParamStore(std::vector<ScopeSpec> scopes, int total_scopes, const ZeroOptions&, const Mesh&, const Backend&,
             Stream compute, ZeroMemory = {});
  ~ParamStore();

  // The order in which this rank's compute actions will use its stages, in a step and in one pass of an evaluation:
  // what stage 3 prefetches by. Without it nothing is prefetched; with it, scopes must be used in that order.
  void set_order(std::span<const StageVisit> step, std::span<const StageVisit> evaluation);

  // Fills values by the counter-based rule: equal under every layout. `threads` host threads.
  void init(uint64_t seed, int threads);

  ParamScope& scope(const std::string& name);

  // -- one step, called through the executor's hooks
  // unused: by scope of the whole model, equal on every rank; what is not 0 is used by no microbatch of this step, and
  // its gradient is 0. Empty: all are used.
  void begin_step(std::span<const uint8_t> unused = {});
  void begin_backward(int stage, int microbatch, bool last);
  // Of what decides which calls an action of this stage makes for its parameters: who has written gradients, where those
  // and values lie that exist for a while only, what is being reduced. kernels/replay.h tells actions apart by it.
  uint64_t fingerprint(int stage) const;
  void reduce_grads(int stage);   // launches what has not been launched
  void reduce_tied();             // adds the two copies' gradients, first-stage + last-stage order
  void finish_reduction();        // everything has landed; stage 0 gathers; a parameter without gradient is an error

  void begin_evaluation();        // before each pass of an evaluation

  // Writes the sum of squares of the gradients per scope, over the elements this rank owns (shard position at every
  // stage; of elements that several tp ranks hold the first of them; not a tied copy), 0 for scopes of other ranks: out
  // f64 [total_scopes + 1]. Summed over the world it is the global norm squared, with entries in the model's order
  // whatever the layout. The last entry is the sum of squares of what the others leave out because another tensor rank
  // counts it. Only good for knowing that it is finite: a replica that is not would part from its owner.
  void norm_squares(Tensor out);
  // After finish_reduction(): the parameter that a backward met first among those whose gradients are not finite on
  // this rank's shard, and its place in the order of a backward of the whole model (0: the first it meets).
  struct BadGradient {
    int64_t place = 0;
    std::string name;
  };
  std::optional<BadGradient> first_bad_gradient() const;

  // What to update, and how many elements of state a local scope needs.
  std::span<const UpdateRange> ranges() const { return ranges_; }
  std::span<const UpdatePiece> pieces() const { return pieces_; }
  const std::vector<const Parameter*>& tensors() const { return tensors_; }  // same list on all ranks of a stage
  int num_scopes() const;
  int64_t num_shards() const;  // of all local scopes, over their domains
  int64_t state_elements(int scope) const;

  // Masters were written from outside, by a checkpoint or a test: values follow on every rank. Collective over dp.
  void adopt_masters();

  void publish();  // values changed: gather what is kept whole (stages 1 to 3), new versions

  // Throws when a tied table has drifted apart between first and last stage, naming it. Collective over their ranks.
  void require_equal_copies();

  // Views for checkpoints. `group` "master" gives what is trained: masters, or values of their own type; optimizers
  // pass their own flat state buffers (one per local scope).
  void append_views(const std::string& group, std::span<const Tensor> flat_state, std::vector<ShardView>& out) const;
  std::vector<ShardView> value_views() const;
  // "grad/…": sums over dp, valid where `save` between finish_reduction and begin_step.
  std::vector<ShardView> grad_views() const;

  std::vector<Parameter*> parameters() const;
  int64_t local_elements() const;     // parameters of this rank's place, padding of the flat buffers excluded
  int64_t master_bytes() const;       // f32 masters of half values
  int64_t value_bytes() const;        // kept, and at most gathered so far
  int64_t grad_bytes() const;         // kept, and at most on their way so far
  int64_t table_bytes() const { return norms_.bytes(); }  // of what norm_squares() adds up
  ZeroMemory temporary_bytes() const; // of those, what is not kept

 private:
  void add_scope(ScopeSpec);
  ScopeState& add_uniform(ScopeSpec, std::vector<int> place, ScopeState* main);
  void allocate(ScopeState&, bool companion);
  void init_whole(ScopeState&, Tensor whole, uint64_t seed, int threads);
  void round_masters();
  void derive_values(ScopeState&);
  void add_ranges(int scope);
  void cut_pieces();
  void list_squares();
  void list_squares(const ScopeState&, bool of_counted, int group);
  const std::vector<ScopeState*>& used_order();
  const Mesh& mesh_;
  ZeroOptions options_;
  const Backend& backend_;
  Stream compute_;
  int total_scopes_;
  std::vector<std::unique_ptr<ScopeState>> scopes_;
  std::unique_ptr<GradReducer> reducer_;
  std::unique_ptr<ValueGatherer> gatherer_;
  std::unique_ptr<WeightQuantizer> quantizer_;
  std::unique_ptr<Fp8Weights> fp8_;  // none: no weight is one of 8 bits
  std::vector<ScopeState*> step_order_, evaluation_order_, running_order_;  // running: what the step uses of its order
  bool ordered_ = false;
  std::vector<UpdateRange> ranges_;
  std::vector<UpdatePiece> pieces_;
  std::vector<const Parameter*> tensors_;
  SegmentTables norms_;  // one: gradients by scope of the model, then what other tensor ranks count
};

}  // namespace gt
