// Training engine of one rank: model stages, parameter store, optimizer, pipeline executor, and the step that drives
// them. Independent of files, logs and configuration. Shared by trainer, generator, bench and equality tests.
#pragma once
#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "autograd/precision.h"
#include "kernels/backend.h"
#include "kernels/core/batch.h"
#include "kernels/core/host_array.h"
#include "kernels/replay.h"
#include "launch/config/values/layout_options.h"
#include "launch/engine/fp8_states.h"
#include "launch/engine/measure/step_clock.h"
#include "launch/engine/quantizer_states.h"
#include "launch/engine/router_biases.h"
#include "launch/engine/step_exchange.h"
#include "launch/engine/step_guard.h"
#include "model/layer_drop.h"
#include "model/model_stage.h"
#include "optim/loss_scaler.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"
#include "parallel/mesh.h"
#include "parallel/pipeline/executor.h"
#include "parallel/zero/param_store.h"

namespace gt {

struct EngineOptions : LayoutOptions {
  TransformerConfig model;
  decltype(&make_stage) build_stage = make_stage;  // of models whose stages compute what no built one does
  ZeroOptions zero;
  OptimizerOptions optim;
  LrOptions lr;
  LossScaleOptions loss_scale;
  Precision precision;
  bool sequence_parallel = false;     // with tp > 1: each TP rank holds its own rows between TP layers
  int64_t loss_chunk = 0;             // rows of logits that exist at once; 0: automatic
  int64_t micro_batch = 1;            // sequences per microbatch
  int microbatches = 1;               // per step and data-parallel rank
  float grad_clip = 1;                // 0: off
  bool mean_of_microbatches = false;  // loss: mean of the microbatches' means instead of the mean over all tokens
  bool grad_sum = false;              // gradient: sum over the data-parallel ranks instead of the mean
  double clip_slack = 1e-6;           // added to the norm when clipping divides by it; 0 for apex's LAMB
  LayerDrop layer_drop;               // progressive layer drop, driven by applied steps
  std::vector<std::string> no_decay;  // regular expressions: matching parameters get no weight decay
  uint64_t seed = 1234;
  bool torch_init = false;       // initialize matrices as llm.c does (torch_init.h), whatever the seed
  int threads = 1;               // host threads of this rank
  bool documents = false;        // microbatches have positions in their documents (MicroBatch::positions)
  std::vector<int64_t> lengths;  // tokens a sequence that steps may have instead of model.seq; empty: that is fixed
  bool evaluates = true;         // evaluate() will be called: memory is kept for it
  double expert_load = 0;        // of plans: ExpertAxis::load
  bool trains = true;  // step() will be called; false: no gradients, no optimizer, values at their own precision alone
  // Applied steps from one comparison of a tied table's copies on the first and last stage to the next; 0: never.
#ifdef NDEBUG
  int64_t compare_copies_every = 0;
#else
  int64_t compare_copies_every = 100;
#endif
};

// Memory of one rank by category, in bytes: from a dry run on the null backend, or measured on the live engine.
struct MemoryReport {
  int64_t weights = 0, gradients = 0, optimizer = 0, activations = 0, buffers = 0;
  int64_t copies = 0;      // weight copies in layouts that the backend reads faster
  int64_t workspaces = 0;  // of the backend's libraries and ops; planned: as far as known in advance
  int64_t graphs = 0;      // CUDA graphs; planned from their number of calls, measured from free device memory
  int64_t total() const {
    return weights + gradients + optimizer + activations + buffers + copies + workspaces + graphs;
  }
};

// Traffic that one rank sends in an optimizer step, by group.
struct StepTraffic {
  CommCounters tensor_parallel, pipeline, data_parallel;
  CommCounters key_value;             // gradients of KV heads that several TP ranks hold
  CommCounters embedding;             // gradients of a tied table between the first and the last stage
  CommCounters experts;               // tokens to the ranks of experts and back, if the router chooses all alike
  CommCounters expert_data_parallel;  // data_parallel of the experts, where they are on several ranks
};

// Memory plan of the executors and the parameter store of one rank, from a dry run.
struct EnginePlan {
  ExecutorMemory train, eval;
  ZeroMemory zero;
  MemoryReport memory;
  int slots = 0;  // microbatches in flight; with several chunks per rank, (chunk, microbatch) pairs
  // From a dry run only.
  StepTraffic sent;
  int64_t snapshot_bytes = 0;  // that this rank writes into a checkpoint
};

// Sums over microbatches and data-parallel ranks, by index of ModelSpec::losses. Empty vectors: 0.
struct LossSums {
  std::vector<double> sums, hits;  // hits: targets that have the largest logit
  LossSums& operator+=(const LossSums& o) {
    sums.resize(std::max(sums.size(), o.sums.size())), hits.resize(sums.size());
    for (size_t i = 0; i < o.sums.size(); ++i) sums[i] += o.sums[i], hits[i] += o.hits[i];
    return *this;
  }
};

struct StepResult {
  // The objective over the global batch, the sum of `parts`: weight times mean of each of ModelSpec::losses. Equal on
  // every rank.
  double loss = 0;
  std::array<double, kMostLosses> parts{};
  double grad_norm = 0;  // before clipping
  double clip = 1;       // factor applied by clipping
  double lr = 0;
  double momentum = kKeepBeta;                // beta1 of this step if the schedule varies it
  double loss_scale = 1;                      // of this step's backward
  int blocks = 0;                             // blocks of the model that ran: those not dropped by layer_drop
  double theta = 1;                           // of layer_drop
  bool skipped = false;                       // parameters and optimizer state are unchanged
  bool overflow = false;                      // cause of the skip: non-finite gradients; else an anomalous step
  bool stop = false;                          // some rank requested a stop
  int save_ready = 0;                         // ranks that set ControlFlags::save_ready
  bool save_due = false;                      // some rank set ControlFlags::save_due
  double busy_seconds = 0, wait_seconds = 0;  // of this rank: in compute actions; blocked on neighbours
  double stream_seconds = 0;                  // on this rank's stream, for the last completed step; 0: none yet
  StepTimes times;                            // of all ranks; step_times.h defines to which step each belongs
};

class Engine {
 public:
  Engine(const EngineOptions&, const Mesh&, const Backend&, Stream compute, const EnginePlan&);
  ~Engine();

  // Call after master weights or quantizer state were overwritten (checkpoint load, tests): recomputes everything
  // derived from them. Collective.
  void adopt() {
    fp8_ranges_->adopt();
    store_->refresh_from_masters();
  }
  void init_weights();

  // Runs one optimizer step on options.microbatches microbatches. Collective. target_tokens: unmasked targets of the
  // global batch (unused with mean_of_microbatches, which reads MicroBatch::loss_tokens). flags: those of this rank.
  StepResult step(std::span<const MicroBatch> microbatches, int64_t target_tokens, const ControlFlags& flags = {});

  // Sums of losses and hits over microbatches (any number), equal on every rank. Changes nothing.
  LossSums evaluate(std::span<const MicroBatch> microbatches);
  // Loss sums of the last evaluate(), equal on every rank: microbatch k of data-parallel rank d at [k dp + d].
  std::span<const LossSums> evaluated() const { return evaluated_; }

  // Sets the anomaly limits of loss and pre-clipping gradient norm. `limits` is called at the start of every step, with
  // the same result on every rank. The update of an anomalous step is skipped, like that of a step with non-finite
  // gradients. The device evaluates the limits, because the update is queued directly after the norms.
  void set_limits(std::function<StepLimits()> limits) { limits_of_step_ = std::move(limits); }
  // Sets this rank's wait for the microbatches of the next step, for its StepTimes.
  void set_data_wait(double seconds) { clock_.set_data_wait(seconds); }
  // Fault injection hook, called after the step's gradients are reduced and before any check of them.
  void set_update_hook(std::function<void()> hook) { update_hook_ = std::move(hook); }
  // Sums of ModelSpec::loss_sums of the last step, equal on every rank: of sum i, microbatch k of data-parallel rank d
  // at
  // [(i microbatches + k) dp + d].
  std::span<const double> microbatch_losses() const { return exchange_->on_host(StepExchange::Field::kLosses); }
  // Squared gradient norms of the last step by FSDP unit of the model, times loss_scale^2. Equal on every rank.
  std::span<const double> unit_norm_squares() const { return exchange_->on_host(StepExchange::Field::kNormSquares); }

  // Runs these blocks from the next step on, instead of those that options().layer_drop draws. keep: [layers], as in
  // ModelStage::keep_blocks. For memory plans and tests.
  void set_layer_keep(std::span<const double> keep);
  std::span<const double> kept_blocks() const { return keep_; }  // of the last step; empty: no layer drop

  int64_t applied_steps() const { return applied_; }
  int64_t schedule_steps() const { return applied_ + schedule_ahead_; }  // t of the learning rate
  int64_t applied_samples() const {  // of schedule_steps(), for a schedule over samples
    return lr_options_.samples_before + (schedule_steps() - lr_options_.steps_before) * samples_per_step();
  }
  // Sets the state after a resume. samples: samples of the schedule's steps, if they had another batch size; -1: same
  // batch size. schedule: t of the learning rate; -1: t.
  void set_applied_steps(int64_t t, int64_t samples = -1, int64_t schedule = -1);
  LossScaler& loss_scaler() { return scaler_; }

  std::vector<ShardView> checkpoint_views() const;  // model_views() and optimizer state
  std::vector<ShardView> model_views() const;       // parameters, and quantizer state of quantization-aware training
  ParamStore& store() { return *store_; }
  const ParamStore& store() const { return *store_; }
  PipelineExecutor& executor() { return *train_; }
  std::vector<ModelStage*> stages();
  const ModelSpec& spec() const { return spec_; }
  const Mesh& mesh() const { return mesh_; }
  const EngineOptions& options() const { return options_; }
  const LrSchedule& lr_schedule() const { return *lr_; }
  Optimizer& optimizer() { return *optimizer_; }
  const std::vector<int>& boundaries() const { return boundaries_; }
  PhaseEnds phases() const { return clock_.phases(); }  // of the last step, on this rank
  // Graph replays of compute actions and updates so far. All 0 on devices without graphs.
  ReplayCounts replays() const;
  EnginePlan measured_plan() const;  // high-water marks so far: a plan for a real engine, a measurement of this one

 private:
  void make_constants();
  void prepare_scalars(int64_t target_tokens);
  void choose_blocks();
  void prepare_losses(int64_t target_tokens);
  void begin(std::span<const MicroBatch>, int64_t target_tokens);
  void run_pipeline();
  void reduce();
  void exchange();
  void clip();
  void update();
  void all_gather_weights();
  template <class Work>
  void replay(Work);
  StepResult read_back();
  void abandon(const std::exception&);
  Tensor scalars() const { return scalars_.tensor({kNumScalars}, DType::kF32); }  // of parameters in no group
  Tensor all_scalars() const { return scalars_.tensor({scalar_count()}, DType::kF32); }
  Tensor norm() const { return scalars_.tensor({1}, DType::kF32, scalar_count() * size_of(DType::kF32)); }
  int64_t scalar_count() const { return options_.optim.scalar_rows() * kNumScalars; }
  int64_t loss_count() const { return static_cast<int64_t>(spec_.loss_sums.size()); }
  Tensor losses() const { return losses_.tensor({loss_count() * options_.microbatches}, DType::kF64); }
  // Upstream gradients of all losses, f32 [losses], of microbatch k.
  Tensor dloss(size_t k) const {
    const auto row = options_.mean_of_microbatches ? static_cast<int64_t>(k) : 0;
    return seeds_.tensor({loss_count()}, DType::kF32, row * loss_count() * size_of(DType::kF32));
  }
  int64_t samples_per_step() const { return options_.micro_batch * options_.microbatches * mesh_.size(Axis::kDp); }
  const EngineOptions options_;
  const ModelSpec spec_;
  const Mesh& mesh_;
  const Backend& backend_;
  Stream compute_;
  std::vector<int> boundaries_;  // in the layer list: stage k holds [boundaries[k], boundaries[k+1])
  std::vector<std::unique_ptr<ModelStage>> stages_;  // [chunk]: virtual stage chunk * pp + pp rank
  std::unique_ptr<ParamStore> store_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<LrSchedule> lr_;
  std::unique_ptr<QuantizerStates> ranges_;
  std::unique_ptr<Fp8States> fp8_ranges_;
  std::unique_ptr<RouterBiases> routers_;
  LossScaler scaler_;
  std::unique_ptr<PipelineExecutor> train_, eval_;
  std::unique_ptr<Recording> update_;  // norms, update, all-gather of weights; nullptr: not recorded as a graph yet
  double update_scale_ = 0;            // loss scale with which it was recorded
  ReplayCounts replays_;               // of update_
  std::unique_ptr<StepExchange> exchange_;
  StepClock clock_;
  Buffer scalars_, losses_;  // scalar rows and norm; losses of this rank's microbatches
  Buffer limits_;            // by StepLimit, then weight and divisor of each loss
  Buffer eval_sums_;         // of this rank's microbatches in evaluation: losses, then hits
  std::vector<LossSums> evaluated_;
  std::vector<Buffer> constants_;  // ModelStage::constants
  Buffer seeds_;  // upstream gradients of the losses, [1 or, with mean_of_microbatches, microbatches, losses] f32
  HostArray<float> host_seeds_, host_scalars_;  // host side of copies to the device
  HostArray<double> host_limits_;               // the same
  HostArray<float> read_scalars_;               // copied from the device: all of scalars_
  std::vector<double> counts_;  // with mean_of_microbatches: targets that carry loss, by microbatch of this rank
  std::vector<MicroBatch> seeded_;
  std::function<StepLimits()> limits_of_step_;
  std::function<void()> update_hook_;
  std::vector<double> keep_;     // ModelStage::keep_blocks by block of the model; empty: no layer drop
  std::vector<uint8_t> unused_;  // by FSDP unit of the model: ParamStore::begin_step
  bool fixed_blocks_ = false;
  int64_t applied_ = 0, schedule_ahead_ = 0;
  LrOptions lr_options_;  // with the steps and samples of earlier runs
};

// Runs one step of this rank's engine on the null backend with no-op process groups: exact memory plan, no computation.
// `target`: backend of the real run.
EnginePlan plan_memory(const EngineOptions&, const MeshShape&, int rank, const Backend& target = cpu_backend());

// A microbatch as a step has it, whose tensors lie over one another in `storage`, i32 [micro_batch, seq]: for dry runs.
MicroBatch empty_batch(const EngineOptions&, Tensor storage);

// Whether training microbatches make the same calls in every step, so that graphs of them are of use: not where each
// step leaves out other blocks, nor, as in evaluation, where the sizes of what ranks of experts exchange depend on
// data.
inline bool replays_microbatches(const EngineOptions& o, int ep) { return ep == 1 && !o.layer_drop; }

// Returns the boundaries of the pp * vpp virtual stages in the layer list under options.partition.
std::vector<int> stage_boundaries(const EngineOptions&, int pp);

// Returns the pipeline schedule of a training step, including messages and reductions. Throws kUsage if it does not
// exist. For a schedule read from a file, also if the simulator rejects it or it does not match pp, vpp and the step's
// microbatches.
PipelineSchedule train_schedule(const EngineOptions&, int pp);

}  // namespace gt
