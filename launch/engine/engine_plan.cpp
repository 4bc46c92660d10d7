// Memory plan of a rank: steps of its engine on the null backend with no-op process groups.
#include <algorithm>

#include "checkpoint/save.h"
#include "kernels/null/gemm_log.h"
#include "launch/engine/engine.h"
#include "parallel/comm/null_group.h"

namespace gt {
namespace {

// Covers the memory of steps that drop blocks. Blocks of a stage are alike except that some are recomputed, so the
// memory depends on how many of each kind run. At most `kMost` such pairs are tried. Branches of the running blocks are
// scaled, which takes memory too.
void run_with_fewer_blocks(Engine& engine, std::span<const MicroBatch> batch) {
  constexpr int64_t kMost = 64;
  const EngineOptions& o = engine.options();
  int64_t most = 0;  // blocks of this stage
  for (const ModelStage* s : engine.stages()) most = std::max(most, static_cast<int64_t>(s->blocks()));
  const int64_t again = o.recompute == Recompute::kNone ? 0 : std::min(most, o.recompute_layers);
  const int64_t pairs = (again + 1) * (most - again + 1), stride = (pairs + kMost - 1) / kMost;
  std::vector<double> keep(static_cast<size_t>(o.model.layers));
  for (int64_t k = pairs - 1; k >= 0; k -= stride) {
    const int64_t first = k % (again + 1), rest = k / (again + 1);  // running blocks of each kind
    std::fill(keep.begin(), keep.end(), 0.);
    for (const ModelStage* s : engine.stages())
      for (int64_t i = 0; i < static_cast<int64_t>(s->blocks()); ++i)
        keep[static_cast<size_t>(s->first_block() + i)] = (i < again ? i < first : i - again < rest) ? 0.5 : 0;
    engine.set_layer_keep(keep);
    engine.step(batch, batch.front().batch * batch.front().seq);
  }
}

// Shorter sequences need less memory, but buffers chunked at a fixed size may be placed elsewhere.
void run_at_every_length(Engine& engine, std::span<const MicroBatch> batch) {
  constexpr size_t kMost = 128;
  const std::vector<int64_t>& lengths = engine.options().lengths;
  for (size_t k = 0; k < lengths.size(); k += (lengths.size() + kMost - 1) / kMost) {
    std::vector<MicroBatch> shorter(batch.begin(), batch.end());
    for (MicroBatch& mb : shorter) {
      mb.seq = lengths[k];
      mb.tokens.shape = mb.targets.shape = {mb.batch, mb.seq};
      if (mb.positions) mb.positions.shape = mb.tokens.shape;
    }
    engine.step(shorter, shorter.front().batch * lengths[k]);
  }
}

// Once delayed scales are known, norms write gradients in FP8. A block that is dropped in the first steps gets its
// scale later, so both cases occur together.
template <class Steps>
void run_with_known_scales(Engine& engine, Steps steps) {
  const auto known = [&](auto of_block) {
    for (ModelStage* stage : engine.stages()) {
      const std::vector<Fp8State*> ranges = stage->fp8_states();
      const size_t blocks = std::max<size_t>(1, stage->blocks());
      for (size_t i = 0; i < ranges.size(); ++i) ranges[i]->scale.has_history = of_block(i * blocks / ranges.size());
    }
    steps();
  };
  if (engine.options().layer_drop) {
    known([](size_t block) { return block % 2 == 0; });
    known([](size_t block) { return block % 2 != 0; });
  }
  known([](size_t) { return true; });
}

// Counts op calls of this thread on the null backend.
struct CallCount {
  static inline thread_local int64_t calls = 0;
  template <class A>
  static void before(const char*, const A&) {
    ++calls;
  }
};

// Device memory of the graphs that a run will hold: an allowance per kernel, reported next to the measured value of the
// run. A kernel takes some 10 KB (published: NVIDIA/cccl, pull request 3768). An op call is two kernels (the emulated
// device counts 1.9 in a GPT's microbatch). One graph each for the first and a later microbatch of every slot, and for
// the last microbatch.
class GraphPlan {
 public:
  static constexpr int64_t kKernelBytes = 10240;
  void update_begins() { update_ = CallCount::calls; }
  void evaluation_begins() { evaluation_ = CallCount::calls; }
  int64_t bytes(const EngineOptions& o, int ep, int slots) const {
    const int64_t m = o.microbatches, kinds = std::min<int64_t>(m, 2 * slots + 1);
    int64_t calls = evaluation_ - update_;
    if (o.trains && replays_microbatches(o, ep)) calls += (update_ - begin_) / m * kinds;
    if (o.evaluates && ep == 1)
      calls += (CallCount::calls - evaluation_) / m * std::min<int64_t>(m, std::max(2, slots));
    return 2 * calls * kKernelBytes;
  }

 private:
  const int64_t begin_ = CallCount::calls;
  int64_t update_ = begin_, evaluation_ = begin_;
};

// Runs a step and an evaluation on the null backend. `zero`: sizes of the parameter store's temporary buffers.
EnginePlan dry_run(const EngineOptions& options, const MeshShape& shape, int rank, const Backend& target,
                   ZeroMemory zero) {
  constexpr int64_t kPlenty = int64_t{1} << 47;  // address space, not memory
  static const OpTable& counted = decorate<CallCount>(*null_backend().ops);
  Backend backend = null_backend();
  backend.ops = &counted;
  NullFactory factory(rank, shape.world());
  const Mesh mesh(shape, factory);
  const Stream stream = backend.device->open_stream(0, 1);
  EnginePlan endless;
  endless.train = endless.eval = {kPlenty, kPlenty, 0};
  endless.zero = {zero.gathered > 0 ? zero.gathered : kPlenty, kPlenty};
  EnginePlan plan;
  {
    Engine engine(options, mesh, backend, stream, endless);
    const Shape s{options.micro_batch, options.model.seq};
    const Buffer tokens(s.numel() * size_of(DType::kI32), stream.device, *backend.device);
    const MicroBatch mb = empty_batch(options, tokens.tensor(s, DType::kI32));
    const std::vector<MicroBatch> batch(static_cast<size_t>(options.microbatches), mb);
    const null::GemmLog log;
    GraphPlan graphs;
    if (options.trains) {
      engine.set_update_hook([&] { graphs.update_begins(); });
      engine.step(batch, options.micro_batch * options.model.seq);
      engine.set_update_hook({});
      graphs.evaluation_begins();
    }
    // With ep 1 their ranks are those of dense parameters.
    const auto of_experts = [&](Axis a) { return shape.ep > 1 ? mesh.group(a).counters() : CommCounters{}; };
    const StepTraffic sent{.tensor_parallel = mesh.group(Axis::kTp).counters(),
                           .pipeline = mesh.group(Axis::kPp).counters(),
                           .data_parallel = mesh.group(Axis::kDp).counters(),
                           .key_value = mesh.kv().counters(),
                           .embedding = mesh.embedding_group().counters(),
                           .experts = of_experts(Axis::kEp),
                           .expert_data_parallel = of_experts(Axis::kExpertDp)};
    if (options.evaluates) engine.evaluate(batch);
    const int64_t graph_bytes = target.replays ? graphs.bytes(options, shape.ep, engine.measured_plan().slots) : 0;
    const auto at_every_size = [&] {
      if (!options.trains) return;
      if (!options.lengths.empty()) run_at_every_length(engine, batch);
      if (options.layer_drop) run_with_fewer_blocks(engine, batch);
    };
    at_every_size();
    if (options.precision.fp8 == Fp8Recipe::kDelayed && options.trains)
      run_with_known_scales(engine, [&] {
        engine.step(batch, options.micro_batch * options.model.seq);
        at_every_size();
      });
    plan = engine.measured_plan();
    plan.sent = sent;
    if (options.trains) plan.snapshot_bytes = snapshot_bytes(engine.checkpoint_views());
    plan.memory.graphs = graph_bytes;
    if (target.weight_copy_bytes != nullptr)
      for (const Gemm& g : log.gemms()) plan.memory.copies += target.weight_copy_bytes(g);
    if (target.workspace_bytes != nullptr) plan.memory.workspaces = target.workspace_bytes(log.attention());
  }
  backend.device->close_stream(stream);
  return plan;
}

}  // namespace

MicroBatch empty_batch(const EngineOptions& o, Tensor storage) {
  MicroBatch mb;
  mb.batch = o.micro_batch, mb.seq = o.model.seq;
  mb.tokens = mb.targets = storage;
  if (o.documents) mb.positions = storage;
  if (o.model.token_types > 0) mb.types = storage;
  if (o.model.mask == MaskKind::kFull) mb.lengths = storage.view({storage.numel()}).slice(0, mb.batch);
  if (o.model.predicts_pairs()) mb.pairs = storage.view({storage.numel()}).slice(0, mb.batch);
  return mb;
}

EnginePlan plan_memory(const EngineOptions& options, const MeshShape& shape, int rank, const Backend& target) {
  EnginePlan plan = dry_run(options, shape, rank, target, {});
  // Weight copies are cached by address, and gathered weights have their real addresses only in a buffer of the real
  // size.
  if (plan.zero.gathered > 0) plan = dry_run(options, shape, rank, target, plan.zero);
  if (shape.ep == 1) return plan;
  EngineOptions even = options;
  even.expert_load = 1;
  plan.sent = dry_run(even, shape, rank, target, plan.zero).sent;
  return plan;
}

}  // namespace gt
