#include "launch/engine/engine.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/core/host.h"
#include "launch/config/no_decay.h"
#include "launch/config/schedule_file.h"
#include "launch/engine/torch_init.h"
#include "parallel/pipeline/partition.h"

namespace gt {

std::vector<int> stage_boundaries(const EngineOptions& o, int pp) {
  const auto costs = describe(o.model).layer_costs();
  return partition(o.partition, costs, pp * o.vpp);
}

Schedule train_schedule(const EngineOptions& o, int pp) {
  if (is_schedule_file(o.schedule)) {
    Schedule s = read_schedule_file(o.schedule, o.model.tied);
    require_fits(s, pp, o.vpp, o.microbatches, o.model.tied);
    return s;
  }
  return make_schedule(o.schedule, pp, o.vpp, o.microbatches, o.model.tied);
}

namespace {

// In which order rank `rank` of a schedule needs the parameters of its stages. Weight gradients alone need none.
std::vector<StageVisit> visits(const Schedule& s, int rank) {
  std::vector<StageVisit> out;
  for (const Action& a : s.program[static_cast<size_t>(rank)])
    if (a.act == Act::kForward || a.act == Act::kBackward || a.act == Act::kBackwardInput)
      out.push_back({a.stage, a.act != Act::kForward});
  return out;
}

ZeroOptions resolved(const EngineOptions& o, int pp) {
  ZeroOptions zero = o.zero;
  zero.grad_reduce = grad_reduce_of(zero, pp, o.microbatches);
  zero.masters = o.precision.masters && o.trains;  // without updates nothing needs what rounding drops
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
      clocks_{{{*backend.device, compute}}, {{*backend.device, compute}}} {
  const int pp = mesh.shape().pp, m = options.microbatches;
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
                    .loss_chunk = options.loss_chunk};
  for (int chunk = 0; chunk < options.vpp; ++chunk) {
    const int stage = chunk * pp + mesh.coord(Axis::kPp);
    const auto at = static_cast<size_t>(stage);
    stages_.push_back(make_stage({boundaries_[at], boundaries_[at + 1]}, stage, build));
  }
  std::vector<ScopeSpec> scopes;
  std::vector<Stage*> local;
  for (auto& s : stages_) {
    for (ScopeSpec& spec : s->scopes()) scopes.push_back(std::move(spec));
    local.push_back(s.get());
  }
  std::vector<QuantRange*> ranges;
  for (auto& s : stages_)
    for (QuantRange* r : s->ranges()) ranges.push_back(r);
  ranges_ = std::make_unique<QuantRanges>(std::move(ranges), mesh, backend, compute);
  std::vector<Fp8Range*> fp8;
  for (auto& s : stages_)
    if (options.precision.fp8_delayed)
      for (Fp8Range* r : s->fp8_ranges()) fp8.push_back(r);
  fp8_ranges_ = std::make_unique<Fp8Ranges>(std::move(fp8), mesh, backend, compute);
  no_decay_found_ = mark_no_decay(scopes, options.no_decay);
  store_ = std::make_unique<ParamStore>(std::move(scopes), spec_.units(), resolved(options, pp), mesh, backend, compute,
                                        plan.zero);
  for (auto& s : stages_) s->bind(*store_);
  make_constants();
  lr_options_ = options.lr;
  lr_ = make_lr_schedule(lr_options_);
  OptimizerOptions optim = options.optim;
  optim.momentum_varies = lr_->at(1).beta1 != kOptimizersOwn;
  if (options.trains) optimizer_ = make_optimizer(optim, *store_, mesh, backend, compute);

  const BoundaryOptions shapes{.dynamic_shapes = options.dynamic_shapes, .runs_differ = !options.lengths.empty()};
  const Schedule train = train_schedule(options, pp), evaluation = make_schedule("forward", pp, options.vpp, m);
  store_->set_order(visits(train, mesh.coord(Axis::kPp)), visits(evaluation, mesh.coord(Axis::kPp)));
  const Backend* replayed = backend.replays ? &backend : nullptr;
  if (options.trains)
    train_ = std::make_unique<PipelineExecutor>(train, local, mesh, *backend.ops, *backend.device, compute, plan.train,
                                                shapes, replays_microbatches(options) ? replayed : nullptr);
  if (options.evaluates)
    eval_ = std::make_unique<PipelineExecutor>(evaluation, local, mesh, *backend.ops, *backend.device, compute,
                                               plan.eval, shapes, replayed);
  scalars_ = Buffer((kNumScalars + 1) * size_of(DType::kF32), compute.device, *backend.device);
  const int64_t counts = options.mean_of_microbatches ? int64_t{mesh.shape().dp} * m : 0;
  const int64_t sums = losses_at() + int64_t{mesh.shape().dp} * m + kNumWishes + int64_t{pp} * kNumStageTimes + counts;
  sums_ = Buffer(sums * size_of(DType::kF64), compute.device, *backend.device);
  losses_ = Buffer(m * size_of(DType::kF64), compute.device, *backend.device);
  host_sums_ = HostArray<double>(static_cast<size_t>(sums), *backend.device);
  said_ = HostArray<double>(static_cast<size_t>(sums - losses_at()), *backend.device);
  host_scalars_ = HostArray<float>(kNumScalars, *backend.device);
  limits_ = Buffer(kNumLimits * size_of(DType::kF64), compute.device, *backend.device);
  host_limits_ = HostArray<double>(kNumLimits, *backend.device);
  read_ = backend.device->make_event(compute.device.index);
  read_scalars_ = HostArray<float>(kNumScalars + 1, *backend.device);
  if (options.layer_drop) fix_blocks(std::vector<double>(static_cast<size_t>(options.model.layers), 1.));
  fixed_blocks_ = false;
  if (!options.mean_of_microbatches) return;
  seeds_ = Buffer(m * size_of(DType::kF32), compute.device, *backend.device);
  host_seeds_ = HostArray<float>(static_cast<size_t>(m), *backend.device);
  counts_.resize(static_cast<size_t>(m));
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

Engine::~Engine() { backend_.device->drop_event(read_); }

void Engine::set_applied_steps(int64_t t, int64_t samples, int64_t schedule) {
  applied_ = t;
  schedule_ahead_ = schedule >= 0 ? schedule - t : 0;
  lr_options_.steps_before = schedule_steps();
  lr_options_.samples_before = samples >= 0 ? samples : schedule_steps() * samples_per_step();
  lr_ = make_lr_schedule(lr_options_);
}

// Host values of the step's scalars; the device has copied them when the host has the step's results (await_results).
// Gradients hold loss scale x the gradient of the global batch's mean: divided by all its targets before the backward,
// so that what fp16 can hold depends on the loss scale alone, not on micro_batch, accumulation or data-parallel ranks.
void Engine::prepare_scalars(int64_t target_tokens) {
  const int64_t t = applied_ + 1;
  float* host = host_scalars_.data();
  std::fill_n(host, host_scalars_.size(), 0.f);
  optimizer_->fill_scalars(t, lr_->at(t + schedule_ahead_), host);
  host[kLossSeed] = static_cast<float>(scaler_.scale() / static_cast<double>(std::max<int64_t>(target_tokens, 1)));
  if (options_.grad_sum) host[kLossSeed] *= static_cast<float>(mesh_.size(Axis::kDp));
  const StepLimits limits = limits_of_step_ ? limits_of_step_() : StepLimits{};
  const auto limit = [&](StepLimit l, double x) { host_limits_[static_cast<size_t>(l)] = x; };
  limit(kTargets, static_cast<double>(target_tokens));
  limit(kLossMiddle, limits.loss_middle), limit(kLossSpread, limits.loss_spread);
  limit(kNormMiddle, limits.norm_middle), limit(kNormSpread, limits.norm_spread);
  limit(kMostSpreads, limits.most);
  if (compute_.device.kind == DeviceKind::kNull) return;
  backend_.device->copy(scalars_.data(), host, host_scalars_.bytes(), compute_);
  backend_.device->copy(limits_.data(), host_limits_.data(), host_limits_.bytes(), compute_);
}

void Engine::fix_blocks(std::span<const double> keep) {
  GT_CHECK(static_cast<int64_t>(keep.size()) == options_.model.layers, keep.size(), " entries for ",
           options_.model.layers, " blocks");
  keep_.assign(keep.begin(), keep.end());
  unused_.resize(static_cast<size_t>(spec_.units()));
  fixed_blocks_ = true;
}

// Which blocks the step runs: the same on every rank, and when the step is run again.
void Engine::choose_blocks() {
  if (keep_.empty()) return;
  if (!fixed_blocks_) draw_blocks(options_.layer_drop, options_.seed, applied_, keep_);
  for (size_t i = 0; i < keep_.size(); ++i)
    unused_[static_cast<size_t>(spec_.unit_of_block(static_cast<int64_t>(i)))] = keep_[i] == 0;
  for (auto& s : stages_) s->keep_blocks(keep_);
}

// Each microbatch's seed makes its own mean: the gradient is that of sum_k mean_k / (m d).
void Engine::prepare_seeds(std::span<const MicroBatch> microbatches) {
  const double ranks = mesh_.size(Axis::kDp);
  const double scale = scaler_.scale() / (options_.microbatches * (options_.grad_sum ? 1 : ranks));
  for (size_t k = 0; k < microbatches.size(); ++k) {
    const MicroBatch& mb = microbatches[k];
    counts_[k] = static_cast<double>(mb.loss_tokens >= 0 ? mb.loss_tokens : mb.batch * mb.seq);
    host_seeds_[k] = static_cast<float>(scale / std::max(counts_[k], 1.));
  }
  if (compute_.device.kind != DeviceKind::kNull)
    backend_.device->copy(seeds_.data(), host_seeds_.data(), host_seeds_.bytes(), compute_);
}

void Engine::init_weights() {
  store_->init(options_.seed, options_.threads);
  if (!options_.torch_init) return;
  init_as_torch(spec_, store_->value_views(), backend_, compute_);
  adopt();
}

StepResult Engine::step(std::span<const MicroBatch> microbatches, int64_t target_tokens, bool stop, bool save_ready,
                        bool save_due) try {
  const int m = options_.microbatches, scopes = spec_.units();
  GT_CHECK(train_ != nullptr, "this engine was built without training");
  GT_CHECK(static_cast<int>(microbatches.size()) == m, "a step takes ", m, " microbatches, got ", microbatches.size());
  const Tensor scalars = scalars_.tensor({kNumScalars}, DType::kF32), losses = losses_.tensor({m}, DType::kF64);
  const Tensor norm = scalars_.tensor({1}, DType::kF32, kNumScalars * size_of(DType::kF32));
  const Tensor sums = sums_.tensor({static_cast<int64_t>(host_sums_.size())}, DType::kF64);
  PhaseClock& phases = clock_of(++step_);
  phases.clock.restart(), phases.complete = false;
  phases.marks[0] = phases.clock.mark();
  prepare_scalars(target_tokens);

  choose_blocks();
  store_->begin_step(unused_);
  ranges_->begin_step();
  fp8_ranges_->begin_step();
  const GradHooks hooks{[this](int stage, int mb, bool last) { store_->begin_backward(stage, mb, last); },
                        [this](int stage) { store_->reduce_grads(stage); }, [this] { store_->reduce_tied(); },
                        [this](int stage) { return store_->fingerprint(stage); }};
  seeded_.assign(microbatches.begin(), microbatches.end());
  if (options_.mean_of_microbatches) prepare_seeds(microbatches);
  for (size_t k = 0; k < seeded_.size(); ++k) {
    seeded_[k].loss_seed = options_.mean_of_microbatches
                               ? seeds_.tensor({1}, DType::kF32, static_cast<int64_t>(k) * size_of(DType::kF32))
                               : scalars.slice(kLossSeed, 1);
    seeded_[k].train = true;
  }
  train_->run(seeded_, losses, hooks);
  end_phase(Phase::kPipeline);
  store_->finish_reduction();
  end_phase(Phase::kReduce);
  if (probe_) probe_();

  put_wishes(stop, save_ready, save_due);
  queue_update([&] {
    const Tensor norms = sums.slice(0, scopes), replicas = sums.slice(scopes, 1);
    store_->norm_squares(sums.slice(0, losses_at()));
    share(losses);
    backend_.ops->clip_factor({.norm_squares = norms,
                               .scalars = scalars,
                               .norm = norm,
                               .clip = options_.grad_clip,
                               .denominator = static_cast<float>(scaler_.scale()),
                               .slack = options_.clip_slack,
                               .guard = replicas},
                              compute_);
    if (limits_of_step_) judge(norm);
    end_phase(Phase::kNorms);
    queue_fetch();
    optimizer_->step(scalars, compute_);
    end_phase(Phase::kOptimizer);
    store_->publish();
  });
  end_phase(Phase::kGather);
  phases.complete = true;
  return read_back(target_tokens);
} catch (const std::exception& e) {
  abandon(e);
  throw;
}

// Norms, update, publication: the same calls in every step with this loss scale, by which the clipping divides.
template <class Work>
void Engine::queue_update(Work work) {
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

void Engine::end_phase(Phase p) {
  PhaseClock& c = clock_of(step_);
  c.marks[static_cast<size_t>(p) + 1] = c.clock.mark();
}

// This rank's share of the mean times of its pipeline rank. `out`: of all pipeline ranks.
void Engine::put_stage_times(double* out) {
  if (train_ && !clock_of(step_).clock.behind()) measure_pipeline();
  const double replicas = static_cast<double>(mesh_.shape().world()) / mesh_.shape().pp;
  for (size_t i = 0; i < kNumStageTimes; ++i)
    out[static_cast<size_t>(mesh_.coord(Axis::kPp)) * kNumStageTimes + i] = own_times_[i] / replicas;
}

// Of the step whose pipeline part ran last.
void Engine::measure_pipeline() {
  std::fill_n(own_times_, kReduceTime, 0.);
  for (const ActionTime& t : train_->timeline()) {
    const Act act = t.action.act;
    const int kind = act == Act::kForward         ? (t.last == act ? kForwardTime : kMicrobatchTime)
                     : act == Act::kBackward      ? kBackwardTime
                     : act == Act::kBackwardInput ? (t.last == act ? kInputGradTime : kBackwardTime)
                                                  : kWeightGradTime;
    own_times_[kind] += t.end - t.begin - t.inside.total();
    own_times_[kTpTime] += t.inside.tp;
  }
  own_times_[kWaitTime] = train_->wait_seconds();
  own_times_[kPipelineTime] = train_->timeline().empty() ? 0 : train_->timeline().back().end;
}

// Of the last step whose update is known to be over.
void Engine::measure_update(StepResult& r) {
  const PhaseClock& c = clock_of(clock_of(step_).clock.behind() ? step_ - 1 : step_);
  if (!c.complete) return;
  r.stream_seconds = c.clock.at(c.marks.back()) - c.clock.at(c.marks.front());
  for (int p = kReduceTime; p <= kGatherTime; ++p)
    own_times_[p] = c.length(static_cast<Phase>(p - kReduceTime + static_cast<int>(Phase::kReduce)));
  for (const ActionTime& t : train_->transfers())
    if (t.action.act == Act::kReduceGrads || t.action.act == Act::kReduceTied)
      own_times_[kReduceTime] += t.end - t.begin;
  for (const ActionTime& t : train_->timeline()) {
    own_times_[kReduceTime] += t.inside.reductions;
    own_times_[kGatherTime] += t.inside.gathers;
  }
  // Without replicas nothing is exchanged: what these phases cost belongs to the update.
  const auto to_update = [&](StageTime t) { own_times_[kOptimizerTime] += std::exchange(own_times_[t], 0); };
  if (mesh_.size(Axis::kDp) > 1) return;
  to_update(kGatherTime);
  if (mesh_.ends().size() == 1) to_update(kReduceTime);
}

PhaseEnds Engine::phases() {
  const PhaseClock& c = clock_of(step_);
  if (c.clock.behind()) backend_.device->synchronize(compute_);
  PhaseEnds ends{};
  for (size_t i = 0; c.complete && i < ends.size(); ++i) ends[i] = c.clock.at(c.marks[i]);
  return ends;
}

// One vector for everything that the world must agree on: norms by scope, losses by (microbatch, dp rank), the wish to
// stop, saves that are done, times by pipeline rank, and targets by microbatch where a mean of means asks for them.
// Each entry of the first two has one writer (norms: one a shard), so the sums do not depend on the layout's pipeline
// axis. Here what the host knows of it, behind the norms; share() adds the losses.
void Engine::put_wishes(bool stop, bool save_ready, bool save_due) {
  const auto dp = static_cast<size_t>(mesh_.size(Axis::kDp)), m = static_cast<size_t>(options_.microbatches);
  double* out = said_.data();
  std::fill_n(out, said_.size(), 0.);
  double* wishes = out + dp * m;
  wishes[kStop] = stop ? 1 : 0;
  wishes[kSaveReady] = save_ready ? 1 : 0;
  wishes[kSaveDue] = save_due ? 1 : 0;
  put_stage_times(wishes + kNumWishes);
  if (options_.mean_of_microbatches && mesh_.last_stage() && mesh_.coord(Axis::kTp) == 0)
    for (size_t k = 0; k < counts_.size(); ++k)  // targets that carry loss, from the ranks that have them
      out[said_.size() - dp * m + k * dp + static_cast<size_t>(mesh_.coord(Axis::kDp))] = counts_[k];
  if (compute_.device.kind != DeviceKind::kNull)
    backend_.device->copy(sums_.data() + losses_at() * size_of(DType::kF64), out, said_.bytes(), compute_);
}

void Engine::share(Tensor losses) {
  const int dp = mesh_.size(Axis::kDp), m = options_.microbatches;
  const Tensor sums = sums_.tensor({static_cast<int64_t>(host_sums_.size())}, DType::kF64);
  if (mesh_.last_stage() && mesh_.coord(Axis::kTp) == 0)
    for (int k = 0; k < m; ++k)
      backend_.ops->copy({.src = losses.slice(k, 1),
                          .dst = sums.slice(losses_at() + int64_t{k} * dp + mesh_.coord(Axis::kDp), 1)},
                         compute_);
  mesh_.world().all_reduce(sums, ReduceOp::kSum, compute_).wait(compute_);
}

void Engine::judge(Tensor norm) {
  const auto losses = static_cast<int64_t>(microbatch_losses().size());
  const Tensor sums = sums_.tensor({static_cast<int64_t>(host_sums_.size())}, DType::kF64);
  backend_.ops->judge_step({.losses = sums.slice(losses_at(), losses),
                            .counts = options_.mean_of_microbatches ? sums.slice(sums.numel() - losses, losses) : Tensor{},
                            .norm = norm,
                            .limits = limits_.tensor({kNumLimits}, DType::kF64),
                            .scalars = scalars_.tensor({kNumScalars}, DType::kF32)},
                           compute_);
}

// Sums of the world and scalars of the step on their way to the host, before the update: while the device updates, the
// host has the step's results and queues the next step, for which the device need not wait.
void Engine::queue_fetch() {
  if (compute_.device.kind == DeviceKind::kNull) return;
  backend_.device->copy(host_sums_.data(), sums_.data(), host_sums_.bytes(), compute_);
  backend_.device->copy(read_scalars_.data(), scalars_.data(), read_scalars_.bytes(), compute_);
  backend_.device->record(read_, compute_);
}

// Once a step.
void Engine::await_results() {
  if (compute_.device.kind != DeviceKind::kNull) backend_.device->await(read_);
}

double Engine::loss_of_step(int64_t target_tokens) const {
  const std::span<const double> losses = microbatch_losses(), sums = host_sums_;
  const double* counts = options_.mean_of_microbatches ? sums.last(losses.size()).data() : nullptr;
  return mean_loss(losses.data(), counts, static_cast<int64_t>(losses.size()), static_cast<double>(target_tokens));
}

std::span<const double> Engine::microbatch_losses() const {
  const auto n = static_cast<size_t>(mesh_.size(Axis::kDp) * options_.microbatches);
  return std::span<const double>(host_sums_).subspan(static_cast<size_t>(losses_at()), n);
}

StepResult Engine::read_back(int64_t target_tokens) {
  await_results();
  if (PhaseClock& c = clock_of(step_); c.clock.behind()) {
    c.clock.anchor(c.marks[static_cast<size_t>(Phase::kNorms) + 1], now());
    train_->settle(c.clock);
    measure_pipeline();  // of this step, for the others in the next one
  }
  const HostArray<float>& scalars = read_scalars_;
  StepResult r;
  r.loss = loss_of_step(target_tokens);
  const auto shared =
      std::span<const double>(host_sums_).subspan(static_cast<size_t>(losses_at()) + microbatch_losses().size());
  r.stop = shared[kStop] > 0;
  r.save_ready = static_cast<int>(shared[kSaveReady]);
  r.save_due = shared[kSaveDue] > 0;
  r.times = StepTimes(shared.subspan(kNumWishes, static_cast<size_t>(mesh_.shape().pp) * kNumStageTimes));
  r.grad_norm = static_cast<double>(scalars[kNumScalars]);
  r.clip = static_cast<double>(scalars[kGradMultiplier]) * scaler_.scale();
  r.loss_scale = scaler_.scale();
  r.lr = static_cast<double>(scalars[kLr]);
  r.momentum = lr_->at(schedule_steps() + 1).beta1;
  r.blocks = static_cast<int>(options_.model.layers - std::count(keep_.begin(), keep_.end(), 0.));
  r.theta = theta_at(options_.layer_drop, applied_);
  r.skipped = scalars[kSkip] != 0;
  r.overflow = r.skipped && scalars[kLeftOut] == 0;
  r.busy_seconds = train_->busy_seconds();
  r.wait_seconds = train_->wait_seconds();
  measure_update(r);
  if (!r.skipped) {
    ++applied_;
    ranges_->end_step();
    fp8_ranges_->end_step(applied_);
  }
  scaler_.update(r.overflow);  // last: all that belongs to this step has used its scale
  if (options_.compare_copies_every > 0 && !r.skipped && applied_ % options_.compare_copies_every == 0)
    store_->require_equal_copies();
  return r;
}

double Engine::evaluate(std::span<const MicroBatch> microbatches) try {
  const int dp = mesh_.size(Axis::kDp), m = options_.microbatches;
  GT_CHECK(eval_ != nullptr, "this engine was built without evaluation");
  GT_CHECK(microbatches.size() % static_cast<size_t>(m) == 0, "evaluation takes whole steps of ", m, " microbatches");
  const Tensor scalars = scalars_.tensor({kNumScalars}, DType::kF32), losses = losses_.tensor({m}, DType::kF64);
  double total = 0;
  for (size_t at = 0; at < microbatches.size(); at += static_cast<size_t>(m)) {
    seeded_.assign(microbatches.begin() + static_cast<ptrdiff_t>(at),
                   microbatches.begin() + static_cast<ptrdiff_t>(at) + m);
    for (MicroBatch& mb : seeded_) mb.loss_seed = scalars.slice(kLossSeed, 1);
    store_->begin_evaluation();
    eval_->run(seeded_, losses, {.fingerprint = [this](int stage) { return store_->fingerprint(stage); }});
    backend_.device->zero(sums_.data(), losses_at() * size_of(DType::kF64), compute_);
    put_wishes(false, false, false);
    share(losses);
    queue_fetch();
    await_results();
    for (int i = 0; i < dp * m; ++i) total += host_sums_[static_cast<size_t>(losses_at() + i)];
  }
  return total;
} catch (const std::exception& e) {
  abandon(e);
  throw;
}

// Peers that are threads may be reading this engine's buffers, which the error is about to free.
void Engine::abandon(const std::exception& e) {
  const auto* error = dynamic_cast<const Error*>(&e);
  mesh_.world().abandon(e.what(), error != nullptr ? error->code() : Exit::kInternal);
}

std::vector<ShardView> Engine::model_views() const {
  std::vector<ShardView> views = store_->value_views();
  ranges_->append_views(views);
  fp8_ranges_->append_views(views);
  return views;
}

std::vector<ShardView> Engine::checkpoint_views() const {
  std::vector<ShardView> views = model_views();
  GT_CHECK(optimizer_ != nullptr, "this engine was built without training");
  for (ShardView& v : optimizer_->state_views(*store_)) views.push_back(std::move(v));
  deal_over_tp(views);  // once more, over weights and state together: so no rank stores much more than another
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
  plan.memory.buffers =
      plan.train.boundary_bytes + plan.eval.boundary_bytes + scalars_.bytes() + sums_.bytes() + losses_.bytes() +
      limits_.bytes() + seeds_.bytes() + ranges_->bytes() + fp8_ranges_->bytes() + store_->table_bytes() +
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
