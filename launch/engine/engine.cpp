#include "launch/engine/engine.h"

#include <algorithm>
#include <utility>

#include "launch/config/values/param_groups.h"
#include "launch/config/values/schedule_file.h"
#include "launch/engine/torch_init.h"
#include "parallel/pipeline/partition.h"

namespace gt {

using Field = StepExchange::Field;

std::vector<int> stage_boundaries(const EngineOptions& o, int pp) {
  const auto costs = describe(o.model).layer_costs();
  return partition(o.partition, costs, pp * o.vpp);
}

PipelineSchedule train_schedule(const EngineOptions& o, int pp) {
  if (is_schedule_file(o.schedule)) {
    PipelineSchedule s = read_schedule_file(o.schedule, o.model.tied);
    require_fits(s, pp, o.vpp, o.microbatches, o.model.tied);
    return s;
  }
  return make_schedule(o.schedule, pp, o.vpp, o.microbatches, o.model.tied, o.extra_in_flight);
}

namespace {

// Returns the order in which rank `rank` of a schedule reads the parameters of its stages. Weight gradients read none.
std::vector<StagePass> read_order(const PipelineSchedule& s, int rank) {
  std::vector<StagePass> out;
  for (const Action& a : s.program[static_cast<size_t>(rank)])
    if (a.act == Act::kForward || a.act == Act::kBackward || a.act == Act::kBackwardInput)
      out.push_back({a.stage, a.act != Act::kForward});
  return out;
}

ZeroOptions resolved(const EngineOptions& o, int pp) {
  ZeroOptions zero = o.zero;
  zero.grad_reduce = grad_reduce_of(zero, pp, o.microbatches);
  zero.one_microbatch = o.microbatches == 1;
  zero.masters = o.precision.masters && o.trains;  // without updates, master weights are not needed
  zero.gradients = o.trains;
  return zero;
}

}  // namespace

Engine::Engine(const EngineOptions& options, const Mesh& mesh, const Backend& backend, Stream compute,
               const EnginePlan& plan)
    : options_(options),
      spec_(describe(options.model)),
      mesh_(mesh),
      backend_(backend),
      compute_(compute),
      boundaries_(stage_boundaries(options, mesh.shape().pp)),
      scaler_(options.loss_scale),
      clock_(mesh, *backend.device, compute) {
  const int pp = mesh.shape().pp, m = options.microbatches;
  for (const LossTerm& term : spec_.losses)  // other stages do not count the targets of a microbatch
    GT_CHECK(!options.mean_of_microbatches || term.divisor != LossDivisor::kTargets ||
                 term.layers.front() + 1 == static_cast<int>(spec_.layers.size()),
             "loss ", term.name, " of a block: means of microbatches over targets are of the head's losses alone");
  GT_CHECK(options.vpp >= 1 && (options.vpp == 1 || pp > 1), "vpp ", options.vpp, " with pp ", pp);
  GT_CHECK(mesh.shape().kv_ranks == options.model.kv_ranks(mesh.size(Axis::kTp)), "a mesh of ", mesh.shape().kv_ranks,
           " ranks for a KV head, a model of ", options.model.groups(), " KV heads on tp ", mesh.size(Axis::kTp));
  const Build build{.model = spec_,
                    .mesh = mesh,
                    .seed = options.seed,
                    .sequence_parallel = options.sequence_parallel,
                    .precision = options.precision,
                    .recompute = options.recompute,
                    .recompute_layers = options.recompute_layers,
                    .loss_chunk = options.loss_chunk,
                    .device = backend.device,
                    .expert_load = options.expert_load};
  for (int chunk = 0; chunk < options.vpp; ++chunk) {
    const int stage = chunk * pp + mesh.coord(Axis::kPp);
    const auto at = static_cast<size_t>(stage);
    stages_.push_back(options.build_stage({boundaries_[at], boundaries_[at + 1]}, stage, build));
  }
  std::vector<UnitSpec> units;
  std::vector<PipelineStage*> local;
  for (auto& s : stages_) {
    for (UnitSpec& spec : s->units()) units.push_back(std::move(spec));
    local.push_back(s.get());
  }
  std::vector<QuantizerState*> ranges;
  for (auto& s : stages_)
    for (QuantizerState* r : s->ranges()) ranges.push_back(r);
  ranges_ = std::make_unique<QuantizerStates>(std::move(ranges), mesh, backend, compute);
  std::vector<Fp8State*> fp8;
  for (auto& s : stages_)
    if (options.precision.fp8 == Fp8Recipe::kDelayed)
      for (Fp8State* r : s->fp8_states()) fp8.push_back(r);
  fp8_ranges_ = std::make_unique<Fp8States>(std::move(fp8), mesh, backend, compute);
  mark_no_decay(units, options.no_decay);
  store_ = std::make_unique<ParamStore>(std::move(units), static_cast<int>(spec_.units.size()), resolved(options, pp),
                                        mesh, backend, compute, plan.zero);
  for (auto& s : stages_) s->bind(*store_);
  std::vector<RouterLoad*> loads;
  for (auto& s : stages_)
    for (RouterLoad* l : s->loads()) loads.push_back(l);
  routers_ = std::make_unique<RouterBiases>(std::move(loads), options.model.moe.bias_rate, mesh, backend, compute);
  make_constants();
  lr_options_ = options.lr;
  lr_ = make_lr_schedule(lr_options_);
  OptimizerOptions optim = options.optim;
  optim.momentum_varies = lr_->varies_momentum();
  if (options.trains) optimizer_ = make_optimizer(optim, *store_, mesh, backend, compute);

  const BoundaryOptions shapes{.dynamic_shapes = options.dynamic_shapes,
                               .shapes_differ_between_runs = !options.lengths.empty()};
  const PipelineSchedule train = train_schedule(options, pp), evaluation = make_schedule("forward", pp, options.vpp, m);
  store_->set_order(read_order(train, mesh.coord(Axis::kPp)), read_order(evaluation, mesh.coord(Axis::kPp)));
  const int ep = mesh.shape().ep;
  const Backend* replayed = backend.replays && ep == 1 ? &backend : nullptr;
  if (options.trains)
    train_ = std::make_unique<PipelineExecutor>(train, local, mesh, *backend.ops, *backend.device, compute, plan.train,
                                                shapes, replays_microbatches(options, ep) ? replayed : nullptr);
  if (options.evaluates)
    eval_ = std::make_unique<PipelineExecutor>(evaluation, local, mesh, *backend.ops, *backend.device, compute,
                                               plan.eval, shapes, replayed);
  const auto scalars = static_cast<size_t>(scalar_count());
  scalars_ = Buffer((scalar_count() + 1) * size_of(DType::kF32), compute.device, *backend.device);
  std::vector<int> own;
  for (const auto& s : stages_)
    for (const int loss : s->losses()) own.push_back(loss);
  const StepExchange::Sizes sizes{static_cast<int>(spec_.units.size()), static_cast<int>(loss_count()), m,
                                  options.mean_of_microbatches};
  exchange_ = std::make_unique<StepExchange>(sizes, std::move(own), mesh, backend, compute);
  losses_ = Buffer(loss_count() * m * size_of(DType::kF64), compute.device, *backend.device);
  if (options.evaluates) eval_sums_ = Buffer(2 * losses_.bytes(), compute.device, *backend.device);
  host_scalars_ = HostArray<float>(scalars, *backend.device);
  host_limits_ = HostArray<double>(static_cast<size_t>(kNumLimits + 2 * loss_count()), *backend.device);
  limits_ = Buffer(host_limits_.bytes(), compute.device, *backend.device);
  read_scalars_ = HostArray<float>(scalars + 1, *backend.device);
  if (options.layer_drop) set_layer_keep(std::vector<double>(static_cast<size_t>(options.model.layers), 1.));
  fixed_blocks_ = false;
  host_seeds_ =
      HostArray<float>(static_cast<size_t>((options.mean_of_microbatches ? m : 1) * loss_count()), *backend.device);
  seeds_ = Buffer(host_seeds_.bytes(), compute.device, *backend.device);
  if (options.mean_of_microbatches) counts_.resize(static_cast<size_t>(m));
}

void Engine::make_constants() {
  for (auto& s : stages_)
    for (Constant* c : s->constants()) {
      const int64_t n = c->shape.numel();
      c->tensor = constants_.emplace_back(n * size_of(DType::kF32), compute_.device, *backend_.device)
                      .tensor(c->shape, DType::kF32);
      if (compute_.device.kind == DeviceKind::kNull) continue;
      HostArray<float> values(static_cast<size_t>(n), *backend_.device);
      c->fill(values.data());
      backend_.device->copy(c->tensor.data, values.data(), values.bytes(), compute_);
      backend_.device->synchronize(compute_);
    }
}

Engine::~Engine() = default;

void Engine::set_applied_steps(int64_t t, int64_t samples, int64_t schedule) {
  applied_ = t;
  schedule_ahead_ = schedule >= 0 ? schedule - t : 0;
  lr_options_.steps_before = schedule_steps();
  lr_options_.samples_before = samples >= 0 ? samples : schedule_steps() * samples_per_step();
  lr_ = make_lr_schedule(lr_options_);
}

// Fills the host values of the step's scalars. The device has copied them once the host has the step's results
// (read_back).
void Engine::prepare_scalars(int64_t target_tokens) {
  const int64_t t = applied_ + 1;
  float* host = host_scalars_.data();
  std::fill_n(host, host_scalars_.size(), 0.f);
  optimizer_->fill_scalars(t, lr_->at(t + schedule_ahead_), host);
  prepare_losses(target_tokens);
  const StepLimits limits = limits_of_step_ ? limits_of_step_() : StepLimits{};
  const auto limit = [&](StepLimit l, double x) { host_limits_[static_cast<size_t>(l)] = x; };
  limit(kLossMedian, limits.loss_middle), limit(kLossDeviation, limits.loss_spread);
  limit(kNormMedian, limits.norm_middle), limit(kNormDeviation, limits.norm_spread);
  limit(kMaxDeviations, limits.most);
  backend_.device->copy(scalars_.data(), host, host_scalars_.bytes(), compute_);
  backend_.device->copy(limits_.data(), host_limits_.data(), host_limits_.bytes(), compute_);
  backend_.device->copy(seeds_.data(), host_seeds_.data(), host_seeds_.bytes(), compute_);
}

// Upstream gradient and share of each loss: its weight over the count that divides it, of the global batch. Gradients
// are so scaled before the backward. The fp16 range then depends on the loss scale only, not on micro_batch,
// accumulation or data-parallel ranks. With mean_of_microbatches the mean over targets is that of microbatches' means:
// the gradient is that of sum_k mean_k / (m d).
void Engine::prepare_losses(int64_t target_tokens) {
  const double ranks = mesh_.size(Axis::kDp);
  LossCounts counts{.targets = target_tokens, .sequences = samples_per_step()};
  for (const MicroBatch& mb : seeded_) counts.tokens += mesh_.size(Axis::kDp) * mb.batch * mb.seq;
  for (size_t k = 0; k < counts_.size(); ++k) {
    const MicroBatch& mb = seeded_[k];
    counts_[k] = static_cast<double>(mb.loss_tokens >= 0 ? mb.loss_tokens : mb.batch * mb.seq);
  }
  const double mean = scaler_.scale() / (options_.microbatches * (options_.grad_sum ? 1 : ranks));
  double* share = host_limits_.data() + kNumLimits;
  for (size_t i = 0; i < spec_.loss_sums.size(); ++i, share += 2) {
    const LossTerm& term = spec_.losses[static_cast<size_t>(spec_.loss_sums[i].term)];
    const bool means = options_.mean_of_microbatches && term.divisor == LossDivisor::kTargets;
    const auto divisor = static_cast<double>(std::max<int64_t>(counts.of(term.divisor), 1));
    share[0] = term.weight;
    share[1] = means ? 0 : divisor;
    for (size_t k = 0; k * spec_.loss_sums.size() < host_seeds_.size(); ++k) {
      const double each = means ? mean / std::max(counts_[k], 1.) : scaler_.scale() / divisor;
      float& seed = host_seeds_[k * spec_.loss_sums.size() + i];
      seed = static_cast<float>(term.weight * each);
      if (options_.grad_sum && !means) seed *= static_cast<float>(ranks);
    }
  }
}

void Engine::set_layer_keep(std::span<const double> keep) {
  GT_CHECK(static_cast<int64_t>(keep.size()) == options_.model.layers, keep.size(), " entries for ",
           options_.model.layers, " blocks");
  keep_.assign(keep.begin(), keep.end());
  fixed_blocks_ = true;
}

// Selects the blocks that the step runs: equal on every rank and on a rerun of the step.
void Engine::choose_blocks() {
  if (keep_.empty()) return;
  if (!fixed_blocks_) draw_blocks(options_.layer_drop, options_.seed, applied_, keep_);
  mark_unused_units(spec_, keep_, unused_);
  for (auto& s : stages_) s->keep_blocks(keep_);
}

void Engine::init_weights() {
  store_->init(options_.seed, options_.threads);
  if (!options_.torch_init) return;
  init_as_torch(spec_, store_->value_views(), backend_, compute_);
  adopt();
}

StepResult Engine::step(std::span<const MicroBatch> microbatches, int64_t target_tokens,
                        const ControlFlags& flags) try {
  begin(microbatches, target_tokens);
  run_pipeline();
  reduce();
  exchange_->put(flags, clock_.own_times(*train_), counts_);
  replay([this] {
    exchange();
    clip();
    update();
    all_gather_weights();
  });
  clock_.end_phase(Phase::kGather);
  return read_back();
} catch (const std::exception& e) {
  abandon(e);
  throw;
}

void Engine::begin(std::span<const MicroBatch> microbatches, int64_t target_tokens) {
  GT_CHECK(train_ != nullptr, "this engine was built without training");
  GT_CHECK(static_cast<int>(microbatches.size()) == options_.microbatches, "a step takes ", options_.microbatches,
           " microbatches, got ", microbatches.size());
  for (const MicroBatch& mb : microbatches)
    GT_CHECK(static_cast<bool>(mb.positions) == options_.documents, "positions in documents: expected ",
             options_.documents ? "some" : "none");
  clock_.begin_step();
  seeded_.assign(microbatches.begin(), microbatches.end());
  prepare_scalars(target_tokens);
  choose_blocks();
  store_->begin_step(unused_);
  ranges_->begin_step();
  fp8_ranges_->begin_step();
  routers_->begin_step();
  for (size_t k = 0; k < seeded_.size(); ++k) seeded_[k].dloss = dloss(k), seeded_[k].train = true;
}

void Engine::run_pipeline() {
  const GradHooks hooks{[this](int stage, int mb, bool last) { store_->begin_backward(stage, mb, last); },
                        [this](int stage) { store_->reduce_grads(stage); }, [this] { store_->reduce_tied(); },
                        [this](int stage) { return store_->fingerprint(stage); }};
  train_->run(seeded_, losses(), hooks);
  clock_.end_phase(Phase::kPipeline);
}

void Engine::reduce() {
  // On a CPU the sum of a tied copy, which only its update reads, may still be on its way between the machines of first
  // and last stage while norms and losses are exchanged.
  store_->finish_reduction(compute_.device.kind != DeviceKind::kCpu || update_hook_ != nullptr);
  clock_.end_phase(Phase::kReduce);
  if (update_hook_) update_hook_();
}

void Engine::exchange() {
  store_->norm_squares(exchange_->on_device(Field::kNormSquares, Field::kReplicaCheck));
  exchange_->all_reduce(losses());
}

// Also queues the copy of the results to the host, before the update. The host queues the next step while the device
// updates, so the device does not wait for it.
void Engine::clip() {
  backend_.ops->clip_factor({.norm_squares = exchange_->on_device(Field::kNormSquares),
                             .scalars = scalars(),
                             .norm = norm(),
                             .clip = options_.grad_clip,
                             .denominator = static_cast<float>(scaler_.scale()),
                             .slack = options_.clip_slack,
                             .guard = exchange_->on_device(Field::kReplicaCheck)},
                            compute_);
  if (limits_of_step_)
    backend_.ops->check_step(
        {.losses = exchange_->on_device(Field::kLosses),
         .shares = limits_.tensor({loss_count(), 2}, DType::kF64, kNumLimits * size_of(DType::kF64)),
         .counts = options_.mean_of_microbatches ? exchange_->on_device(Field::kTargets) : Tensor{},
         .norm = norm(),
         .limits = limits_.tensor({kNumLimits}, DType::kF64),
         .scalars = scalars()},
        compute_);
  store_->finish_tied_copies();
  clock_.end_phase(Phase::kNorms);
  if (compute_.device.kind != DeviceKind::kNull)
    backend_.device->copy(read_scalars_.data(), scalars_.data(), read_scalars_.bytes(), compute_);
  exchange_->fetch();
}

void Engine::update() {
  optimizer_->step(all_scalars(), compute_);
  clock_.end_phase(Phase::kOptimizer);
}

void Engine::all_gather_weights() { store_->all_gather_values(); }

// From exchange to all-gather: the same calls in every step with this loss scale, by which clipping divides.
template <class Work>
void Engine::replay(Work work) {
  if (!backend_.replays) return work();
  if (std::exchange(update_scale_, scaler_.scale()) != scaler_.scale() || !update_)
    update_ = std::make_unique<Recording>(backend_, compute_);
  update_->run(replays_, work);
}

ReplayCounts Engine::replays() const {
  ReplayCounts sum = replays_;
  for (const PipelineExecutor* e : {train_.get(), eval_.get()})
    if (e != nullptr) sum.add(e->replays());
  return sum;
}

StepResult Engine::read_back() {
  exchange_->await();
  clock_.settle(*train_);
  const HostArray<float>& scalars = read_scalars_;
  StepResult r;
  const std::span<const double> shares = std::span<const double>(host_limits_).subspan(kNumLimits);
  r.loss = exchange_->mean_loss(shares, 0, spec_.loss_sums.size());
  for (size_t i = 0, at = 0; i < spec_.losses.size(); ++i) {
    const size_t count = spec_.losses[i].layers.size();
    r.parts[i] = exchange_->mean_loss(shares, at, count);
    at += count;
  }
  r.stop = exchange_->stop();
  r.save_ready = exchange_->save_ready();
  r.save_due = exchange_->save_due();
  r.times = exchange_->times();
  r.grad_norm = static_cast<double>(scalars[host_scalars_.size()]);
  r.clip = static_cast<double>(scalars[kGradMultiplier]) * scaler_.scale();
  r.loss_scale = scaler_.scale();
  r.lr = static_cast<double>(scalars[kLr]);
  r.momentum = lr_->at(schedule_steps() + 1).beta1;
  r.blocks = static_cast<int>(options_.model.layers - std::count(keep_.begin(), keep_.end(), 0.));
  r.theta = theta_at(options_.layer_drop, applied_);
  r.skipped = scalars[kSkip] != 0;
  r.overflow = r.skipped && scalars[kAnomalous] == 0;
  r.busy_seconds = train_->busy_seconds();
  r.wait_seconds = train_->wait_seconds();
  r.stream_seconds = clock_.measure_update(*train_);
  if (!r.skipped) {
    ++applied_;
    ranges_->end_step();
    fp8_ranges_->end_step(applied_);
    routers_->end_step();
  }
  scaler_.update(r.overflow);  // last: everything else of this step uses its scale
  if (options_.compare_copies_every > 0 && !r.skipped && applied_ % options_.compare_copies_every == 0)
    store_->require_equal_copies();
  return r;
}

LossSums Engine::evaluate(std::span<const MicroBatch> microbatches) try {
  const int m = options_.microbatches;
  GT_CHECK(eval_ != nullptr, "this engine was built without evaluation");
  GT_CHECK(microbatches.size() % static_cast<size_t>(m) == 0, "evaluation takes whole steps of ", m, " microbatches");
  const Tensor norms = exchange_->on_device(Field::kNormSquares, Field::kReplicaCheck);
  LossSums total{std::vector<double>(spec_.losses.size()), std::vector<double>(spec_.losses.size())};
  evaluated_.clear();
  for (size_t at = 0; at < microbatches.size(); at += static_cast<size_t>(m)) {
    seeded_.assign(microbatches.begin() + static_cast<ptrdiff_t>(at),
                   microbatches.begin() + static_cast<ptrdiff_t>(at) + m);
    for (MicroBatch& mb : seeded_) mb.dloss = dloss(0);
    store_->begin_evaluation();
    const int64_t n = losses().numel();
    const Tensor sums = eval_sums_.tensor({2 * n}, DType::kF64);
    eval_->run(seeded_, sums.slice(0, n), {.fingerprint = [this](int stage) { return store_->fingerprint(stage); }},
               sums.slice(n, n));
    const size_t begin = evaluated_.size();
    const auto add = [&](Tensor of_microbatches, std::vector<double> LossSums::*kind) {
      backend_.device->zero(norms.data, norms.bytes(), compute_);
      exchange_->put({}, {}, {});
      exchange_->all_reduce(of_microbatches);
      exchange_->fetch();
      exchange_->await();
      const std::span<const double> all = microbatch_losses();
      const size_t count = all.size() / spec_.loss_sums.size();
      const std::vector<double> none(spec_.losses.size());
      evaluated_.resize(begin + count, {none, none});
      for (size_t k = 0; k < all.size(); ++k) {
        const auto term = static_cast<size_t>(spec_.loss_sums[k / count].term);
        (evaluated_[begin + k % count].*kind)[term] += all[k];
        (total.*kind)[term] += all[k];
      }
    };
    add(sums.slice(0, n), &LossSums::sums);
    add(sums.slice(n, n), &LossSums::hits);
  }
  return total;
} catch (const std::exception& e) {
  abandon(e);
  throw;
}

// Ranks that run as threads may still read this engine's buffers, which unwinding would free.
void Engine::abandon(const std::exception& e) {
  const auto* error = dynamic_cast<const Error*>(&e);
  mesh_.world().abandon(e.what(), error != nullptr ? error->code() : Exit::kInternal);
}

std::vector<ShardView> Engine::model_views() const {
  std::vector<ShardView> views = store_->value_views();
  for (ShardView& v : store_->int8_views()) views.push_back(std::move(v));
  ranges_->append_views(views);
  fp8_ranges_->append_views(views);
  return views;
}

std::vector<ShardView> Engine::checkpoint_views() const {
  std::vector<ShardView> views = model_views();
  GT_CHECK(optimizer_ != nullptr, "this engine was built without training");
  for (ShardView& v : optimizer_->state_views(*store_)) views.push_back(std::move(v));
  assign_over_tp(views);  // again over weights and state together, to balance the bytes that each rank stores
  return views;
}

std::vector<ModelStage*> Engine::stages() {
  std::vector<ModelStage*> out;
  for (auto& s : stages_) out.push_back(s.get());
  return out;
}

EnginePlan Engine::measured_plan() const {
  EnginePlan plan;
  const auto of = [](const PipelineExecutor& e) {
    return ExecutorMemory{align_up(e.activation_high_water()), align_up(e.gradient_high_water()), e.boundary_bytes()};
  };
  if (train_) plan.train = of(*train_), plan.slots = train_->slots();
  if (eval_) plan.eval = of(*eval_);
  plan.zero = store_->temporary_bytes();
  plan.memory.weights = store_->value_bytes();
  plan.memory.gradients = store_->grad_bytes();
  plan.memory.optimizer = (optimizer_ ? optimizer_->state_bytes() : 0) + store_->master_bytes();
  plan.memory.activations = plan.train.activation_bytes * plan.slots + plan.train.gradient_bytes +
                            (eval_ ? plan.eval.activation_bytes * eval_->slots() + plan.eval.gradient_bytes : 0);
  plan.memory.buffers = plan.train.boundary_bytes + plan.eval.boundary_bytes + scalars_.bytes() + exchange_->bytes() +
                        losses_.bytes() + eval_sums_.bytes() + limits_.bytes() + seeds_.bytes() + ranges_->bytes() +
                        fp8_ranges_->bytes() + routers_->bytes() + store_->table_bytes() +
                        (optimizer_ ? optimizer_->work_bytes() : 0);
  for (const Buffer& c : constants_) plan.memory.buffers += c.bytes();
  for (const PipelineExecutor* e : {train_.get(), eval_.get()})
    if (e != nullptr) plan.memory.graphs += e->graphs().bytes;
  if (update_) plan.memory.graphs += update_->held().bytes;
  if (backend_.held_copy_bytes != nullptr) plan.memory.copies = backend_.held_copy_bytes(compute_);
  if (backend_.held_workspace_bytes != nullptr) plan.memory.workspaces = backend_.held_workspace_bytes(compute_);
  return plan;
}

}  // namespace gt
