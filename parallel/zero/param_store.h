// Owns the parameter memory of this rank. Each FSDP unit has one flat buffer of values, one of gradients and, for
// 16-bit values, f32 master weights (unless the values themselves are trained). Of frozen parameters it has values
// only, or int8 codes with a scale per row. Each data-parallel rank updates its shard. The ZeRO stage (Rajbhandari et
// al. 2020) determines what a rank keeps unsharded:
//   stage 0: everything; reduced gradients are all-gathered and every rank updates all parameters;
//   stage 1: values and gradients; each rank updates its shard and values are all-gathered;
//   stage 2: values; only its shard of gradients that are reduced after each microbatch (GradReduce::kEach);
//   stage 3: nothing; values are all-gathered while a unit is in use.
// All stages reduce-scatter over the same flat layout, so they are bitwise identical where gradients are reduced once a
// step.
#pragma once
#include <functional>
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
class Int8Weights;
class ValueGatherer;
class WeightQuantizer;
struct UnitState;

// One FSDP unit: parameters that are gathered and reduced together. A tied copy is alone in its unit, and so is its
// owner. The units of a stage are listed in the order in which its forward uses them. `index`: position in the unit
// list of the whole model, equal on every rank and under every pp, so that norms are summed in one order.
struct UnitSpec {
  std::string name;
  std::vector<Parameter*> params;
  int stage = 0;  // virtual stage
  int index = 0;
  AxisSet domain = kDenseDomain;  // ranks that replicate these parameters: see Mesh::domain
  int module = -1;  // units with one number are adjacent, and acquired and released together; -1: a unit of its own
};

// One pass through all units of a virtual stage; a backward uses them from last to first.
struct StagePass {
  int stage;
  bool backward;
};

// Bytes to reserve for temporary buffers, as measured by a dry run on the null backend. 0 reserves enough for all units
// at once.
struct ZeroMemory {
  int64_t gathered = 0;   // unsharded values of units in use
  int64_t gradients = 0;  // unsharded gradients until they are reduced
};

// Tensor range that the optimizer updates: contiguous elements of one unit with the same decay setting. All tensors are
// 1-D and of equal length.
struct TensorRange {
  Tensor value, grad;  // value: f32, bf16 or fp16; grad: f32 or bf16
  Tensor master;       // what is trained: f32 master weights, or the value itself
  // The value, to be written besides the master; empty if their dtypes are equal.
  Tensor rounded() const { return master.dtype == value.dtype ? Tensor{} : value; }
  bool decay = true;
  bool fake_quantized = false;  // the value, after it was rounded
  int unit = 0;                 // local unit number
  int64_t at = 0;               // element offset within this rank's part of the unit, as of state buffers
};

// Part of an TensorRange that belongs to one logical tensor, for optimizers that need norms of whole tensors. Stage 0
// splits ranges by shard too, so that sums are bitwise identical at every stage.
struct TensorRangePart {
  int range = 0;              // in ranges()
  int64_t at = 0, count = 0;  // elements of the range's tensors
  int tensor = 0;             // in tensors()
  int64_t begin = 0;          // its first element in the flattened tp-local tensor
  bool owned = true;          // this rank counts these elements when a tensor is summed over the ranks of its stage
};

// Flat layout of one FSDP unit, as optimizers of whole matrices read it. Element i of params[k] is element offsets[k] +
// i of the unsharded buffer; the state of a rank covers [begin, begin + held) of it.
struct FlatUnit {
  std::span<Parameter* const> params;
  std::span<const int64_t> offsets;
  int first_tensor = 0;  // params[0] in tensors()
  int64_t size = 0, begin = 0, held = 0;
  Domain domain;
};

// Flat buffers of one FSDP unit on this rank.
struct FlatMemory {
  std::span<Parameter* const> params;
  Tensor values, grads, masters;                        // held: of all elements, or this rank's shard; empty: none
  bool values_sharded, grads_sharded, masters_sharded;  // among the ranks of the domain
  AxisSet domain;
  int64_t padding;  // trailing elements of unsharded buffers that belong to no parameter, always 0
};

class ParamStore {
 public:
  // total_units: FSDP units of the whole model. Allocates; values are undefined until init() or a checkpoint load.
  ParamStore(std::vector<UnitSpec> units, int total_units, const ZeroOptions&, const Mesh&, const Backend&,
             Stream compute, ZeroMemory = {});
  ~ParamStore();

  // Sets the order in which this rank's compute actions use its stages, in a step and in one evaluation pass. Stage 3
  // prefetches by it. Without an order nothing is prefetched; with one, units must be used in that order.
  void set_order(std::span<const StagePass> step, std::span<const StagePass> evaluation);

  // Initializes values with counter-based randomness, identical under every layout. `threads`: host threads.
  void init(uint64_t seed, int threads);

  ParamUnit& unit(const std::string& name);

  // One step; called through the executor's hooks.
  // unused: one flag per unit of the whole model, equal on every rank. Nonzero: no microbatch of this step uses the
  // unit (dropped layers), and its gradient is 0. Empty: all units are used.
  void begin_step(std::span<const uint8_t> unused = {});
  void begin_backward(int stage, int microbatch, bool last);
  // Hash of the state that determines which calls an action of this stage makes for its parameters: gradients written,
  // addresses of temporary values and gradients, reductions in flight. kernels/replay.h distinguishes actions by it.
  uint64_t fingerprint(int stage) const;
  void reduce_grads(int stage);  // launches the reductions not launched yet
  void reduce_tied();            // launches the sum of both tied copies' gradients, in first-stage + last-stage order
  // Waits for all reductions; stage 0 all-gathers; a missing gradient is an error. tied_copies false: the sum of a tied
  // copy on the last stage may stay in flight until finish_tied_copies(), which must precede any use of it.
  void finish_reduction(bool tied_copies = true);
  void finish_tied_copies();

  void begin_evaluation();  // call before each evaluation pass

  // Writes the sum of squared gradients per unit, 0 for units of other ranks, to `out`, f64 [total_units + 1]. Counts
  // the elements this rank owns: its shard at every stage, elements shared by TP ranks on the first of them only, no
  // tied copies. Summed over the world it is the squared global norm, with entries in model order under every layout.
  // The last entry is the sum of squares of elements that another TP rank counts. It serves only as a finiteness check:
  // a non-finite replica would diverge from its owner.
  void norm_squares(Tensor out);
  // After finish_reduction(): the first parameter in backward order whose gradient is not finite on this rank's shard.
  // position: in the backward order of the whole model, ascending.
  struct NonFiniteGradient {
    int64_t position = 0;
    std::string name;
  };
  std::optional<NonFiniteGradient> first_nonfinite_gradient() const;

  // Tensor ranges to update, their parts by logical tensor, and the optimizer state elements of a local unit.
  std::span<const TensorRange> ranges() const { return ranges_; }
  std::span<const TensorRangePart> pieces() const { return pieces_; }
  const std::vector<const Parameter*>& tensors() const { return tensors_; }  // same list on all ranks of a stage
  int num_units() const;
  int64_t num_shards() const;  // of all local units, over their domains
  int64_t state_elements(int unit) const;
  std::vector<FlatMemory> flat_memory() const;  // by local unit
  FlatUnit flat_unit(int unit) const;           // of a unit that has state elements

  // Call after master or frozen weights were overwritten (checkpoint load, tests): recomputes values on every rank.
  // Collective over dp.
  void refresh_from_masters();

  // Sets weights held in int8 from f32 values, unit by unit: fill the views of stage_int8(k), then call
  // quantize_staged(). Memory: the f32 values of one unit. Requires: k < int8_units().
  int int8_units() const;
  std::vector<ShardView> stage_int8(int k);
  void quantize_staged();  // collective over tp

  void all_gather_values();  // all-gathers updated weights that are kept unsharded (stages 1 to 3); new versions

  // Throws if the copies of a tied table on first and last stage differ, naming the table. Collective over their ranks.
  void require_equal_copies();

  // Appends views for checkpoints, one flat buffer per local unit. `group` "master" holds what is trained: master
  // weights, or values of their own dtype. Optimizers pass their state buffers.
  void append_views(const std::string& group, std::span<const Tensor> flat_state, std::vector<ShardView>& out) const;
  // The same for state of some parameters. `state` returns the elements [at, at + count) of what this rank updates of a
  // unit, within one tensor; empty: none.
  using StateOf = std::function<Tensor(int unit, int64_t at, int64_t count)>;
  void append_views(const std::string& group, const StateOf& state, std::vector<ShardView>& out) const;
  std::vector<ShardView> value_views() const;  // without weights held in int8
  // Weights held in int8: "master/…" codes, i8, and "scale/…" of their rows, f32.
  std::vector<ShardView> int8_views() const;
  // "grad/…": sums over dp; valid where `save` is set, between finish_reduction and begin_step. The caller may write to
  // them: norm_squares() then reads them all.
  std::vector<ShardView> grad_views() const;

  std::vector<Parameter*> parameters() const;
  int64_t master_bytes() const;                                            // f32 master weights
  int64_t value_bytes() const;                                             // kept, plus the peak gathered so far
  int64_t grad_bytes() const;                                              // kept, plus the peak in flight so far
  int64_t table_bytes() const { return norms_.bytes() + known_.bytes(); }  // of norm_squares()
  ZeroMemory temporary_bytes() const;                                      // the part of both that is not kept

 private:
  void add_unit(UnitSpec);
  void append_views(const std::string& group, int unit, int64_t held, const StateOf&, std::vector<ShardView>&) const;
  UnitState& add_uniform(UnitSpec, std::vector<int> index_in_module, UnitState* main);
  void allocate(UnitState&, bool sibling);
  void gather_kept(bool (*changed)(const UnitState&));
  void init_whole(UnitState&, Tensor whole, uint64_t seed, int threads);
  void round_masters();
  void derive_values(UnitState&);
  void add_ranges(int unit);
  void cut_pieces();
  void list_squares();
  void list_squares(const UnitState&, bool of_counted, int group);
  void record_squares(int stage, bool last);
  void drop_squares() const;
  const std::vector<UnitState*>& used_order();
  const Mesh& mesh_;
  ZeroOptions options_;
  const Backend& backend_;
  Stream compute_;
  int total_units_;
  std::vector<std::unique_ptr<UnitState>> units_;
  std::unique_ptr<GradReducer> reducer_;
  std::unique_ptr<ValueGatherer> gatherer_;
  std::unique_ptr<WeightQuantizer> quantizer_;
  std::unique_ptr<Int8Weights> int8_;
  UnitState* staged_ = nullptr;
  Buffer staged_values_;                                                   // f32, while a unit is staged
  std::unique_ptr<Fp8Weights> fp8_;                                        // null if no weight is FP8
  std::vector<UnitState*> step_order_, evaluation_order_, running_order_;  // running: step order, used units only
  bool ordered_ = false;
  std::vector<TensorRange> ranges_;
  std::vector<TensorRangePart> pieces_;
  std::vector<const Parameter*> tensors_;
  SegmentTables norms_;  // one table: gradients by unit of the model, then those that other TP ranks count
  Buffer known_;         // f64, of each of its segments: the sum of squares if it was computed with the gradient, or -1
  struct Recorded {
    const UnitState* unit;
    Parameter* parameter;
    int64_t segment;
  };
  std::vector<Recorded> recorded_;  // parameters whose ops may do that
  int64_t num_segments_ = 0;
  Tensor known() const { return known_.tensor({num_segments_}, DType::kF64); }
};

}  // namespace gt
