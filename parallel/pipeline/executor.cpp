#include "parallel/pipeline/executor.h"

#include <algorithm>

#include "kernels/core/memory.h"
#include "parallel/pipeline/action_graphs.h"
#include "parallel/pipeline/action_times.h"
#include "parallel/pipeline/buffer_plan.h"
#include "parallel/pipeline/check_schedule.h"
#include "parallel/pipeline/simulate.h"

namespace gt {
namespace {

struct Slot {  // state of one microbatch in flight
  Arena arena;
  Tape tape;
  MicroBatch batch;  // as its stage reads it
  Work sending;      // without backward: its output, possibly still in flight when the microbatch is done
  Action sent{};
  Slot(int64_t bytes, Pool& grads, const OpTable& ops, const DeviceApi& api, Stream s)
      : arena(Buffer(bytes, s.device, api)), tape(arena, grads, ops, s) {}
};

struct Cell {  // one (local chunk, microbatch) during a step
  Var x, y;
  Tensor from_next;  // gradient of y from a stage on this rank: holds one reference to a pool block
  Tensor dx;         // gradient of x for the previous stage: holds one reference to a pool block
  Work receiving_x, receiving_dy, sending_y;
  Work preamble_x, preamble_dy;
  bool announced[2] = {};  // preamble of x, of dy: received and validated
};

struct Outgoing {  // a gradient in flight; its pool block is held until the send was waited for
  Work work;
  Tensor tensor;
  Action action{};
};

// Separate tags: activations and gradients of different stages never queue behind each other. `to`: receiving virtual
// stage.
int tag_of(bool down, int to) { return 2 * to + (down ? 0 : 1); }

bool computes(Act act) {
  return act == Act::kForward || act == Act::kBackward || act == Act::kBackwardInput || act == Act::kBackwardWeight;
}

// Message `act` of the stage and microbatch of `a`.
Action as(Act act, const Action& a) { return {act, a.stage, a.microbatch}; }

}  // namespace

struct PipelineExecutor::Impl {
  Impl(PipelineSchedule schedule, std::vector<PipelineStage*> local, const Mesh& mesh, const OpTable& ops,
       const DeviceApi& api, Stream compute, ExecutorMemory memory, BoundaryOptions boundaries,
       const Backend* replayed);

  void run(std::span<const MicroBatch> microbatches, Tensor out_losses, const GradHooks& step_hooks, Tensor out_hits);
  void perform(const Action&);
  size_t together(const Program&, size_t at) const;
  void compute_all(std::span<const Action>);
  void prepare(const Action&);
  void work(const Action&);
  void conclude(const Action&);
  void prepare_forward(const Action&);
  void forward(const Action&);
  void send_forward(const Action&);
  void recv(const Action&, bool down);
  void announce(const Action&, const Tensor&, bool down);
  Preamble announced(const Action&, const Shape&, bool down) const;
  void require_announced(const Action&, bool down);
  void prepare_backward(const Action&);
  void backward(const Action&, Pass);
  Tensor upstream(const Action&);
  void send_backward(const Action&);

  void size_buffers();
  Tensor slot_sums(const Action&, bool of_hits) const;
  void keep_losses(const Action&);
  void take_input_gradient(const Action&, Cell&, Tape&);
  void drain(Outgoing&);
  void drain_all();
  void poll();

  size_t index(const Action& a, int stage) const {
    return static_cast<size_t>(stage / schedule.ranks) * static_cast<size_t>(schedule.microbatches) +
           static_cast<size_t>(a.microbatch);
  }
  Cell& cell(const Action& a) { return cells[index(a, a.stage)]; }
  const BufferAssignment& assignment(const Action& a) const { return plan.of[index(a, a.stage)]; }
  Slot& slot(const Action& a) { return *slots[static_cast<size_t>(assignment(a).slot)]; }
  PipelineStage& stage(const Action& a) { return *stages[static_cast<size_t>(a.stage / schedule.ranks)]; }
  const MicroBatch& batch(const Action& a) const { return batches[static_cast<size_t>(a.microbatch)]; }
  // The same microbatch, as the stage reads it.
  MicroBatch input_of(const Action& a) {
    return graphs ? graphs->bring(assignment(a).slot, a.microbatch, batch(a)) : batch(a);
  }
  // Queues the calls of these actions, as a graph if possible. Across microbatches they differ only in what input_of()
  // copies.
  template <class Work>
  void queue(std::span<const Action> actions, Work work) {
    if (!graphs) return work();
    const Action& a = actions.front();
    const uint64_t parameters = hooks->fingerprint ? hooks->fingerprint(a.stage) : 0;
    std::byte* dy = nullptr;
    for (const Action& b : actions)
      if (b.act == Act::kBackward || b.act == Act::kBackwardInput) dy = upstream(b).data;
    graphs->run({a.act, actions.back().act, a.stage, assignment(a).slot, cell(a).x.value.data, dy, grads.fingerprint(),
                 parameters},
                work);
  }
  bool first(const Action& a) const { return a.stage == 0; }
  bool last(const Action& a) const { return a.stage == schedule.stages - 1; }
  bool here(int at) const { return schedule.rank_of(at) == rank; }
  std::string name(const Action& a) const { return to_string(Program{a}); }

  Tensor buffer(int number, Shape shape) const {
    GT_CHECK(shape.numel() * size_of(type) <= buffer_bytes, "a boundary tensor ", to_string(shape), " does not fit ",
             buffer_bytes,
             " bytes: all microbatches of a run have the shape of its first run, or ExecutorMemory::boundary_bytes is "
             "too small for ",
             plan.buffers, " buffers");
    return boundary.tensor(shape, type, number * buffer_bytes);
  }
  // Whether a boundary tensor is sent as 1/tp of its elements by each tp rank; one that tp does not divide is sent
  // whole.
  bool sharded(const Shape& s) const { return replicated && s.numel() % tp.size() == 0; }
  // The part of a boundary tensor that this rank sends or receives.
  Tensor message_shard(const Tensor& t) const {
    if (!sharded(t.shape)) return t;
    const int64_t part = t.numel() / tp.size();
    return t.view({t.numel()}).slice(part * tp.rank(), part);
  }
  // All-gathers the rest of a received tensor from the other tp ranks.
  void complete(const Tensor& t) {
    if (sharded(t.shape)) tp.all_gather(message_shard(t), t.view({t.numel()}), compute).wait(compute);
  }
  int64_t sent_bytes(const Shape& s) const { return s.numel() * size_of(type) / (sharded(s) ? tp.size() : 1); }
  // `a`: the send or receive waited for.
  void wait(Work& w, const Action& a, int64_t bytes = 0) {
    if (!w.pending()) return;
    const size_t begin = times.mark();
    w.wait(compute);
    times.moved(a, begin, bytes, true);
  }
  Collectives collectives() const {  // totals so far
    const CommCounters& dp = mesh.group(Axis::kDp).counters();
    const double gathers = static_cast<double>(dp.of(CommOp::kAllGather).blocked_ns) * 1e-9;
    const int64_t heads = mesh.kv().size() > 1 ? mesh.kv().counters().blocked_ns() : 0;  // of shared KV heads
    return {static_cast<double>(tp.counters().blocked_ns() + heads) * 1e-9, gathers,
            static_cast<double>(dp.blocked_ns()) * 1e-9 - gathers};
  }
  // Records actions that were queued together since mark `begin`, where the collectives' totals were `before`.
  void timed(std::span<const Action> actions, size_t begin, const Collectives& before) {
    const Collectives after = times.asynchronous() ? before : collectives();
    int64_t bytes = 0;
    for (const auto& s : slots) bytes += s->arena.used();
    times.computed(
        actions, begin,
        {.live = live,
         .activation_bytes = bytes,
         .inside = {after.tp - before.tp, after.gathers - before.gathers, after.reductions - before.reductions}});
  }
  template <class Call>
  void called(const Action& a, int64_t bytes, Call call) {
    const size_t begin = times.mark();
    call();
    times.moved(a, begin, bytes);
  }
  // Index of a message's preamble.
  size_t note(const Action& a, bool down, bool out) { return index(a, a.stage) * 4 + (down ? 0 : 2) + (out ? 0 : 1); }

  const PipelineSchedule schedule;
  const std::vector<PipelineStage*> stages;
  const Mesh& mesh;
  ProcessGroup &group, &tp;
  const int rank;
  const DType type;  // of boundary tensors
  const OpTable& ops;
  const DeviceApi& api;
  const Stream compute;
  bool forward_only = false;
  bool replicated = false;  // every tp rank of several holds the same boundary tensor

  BufferPlan plan;
  Pool grads;  // before the slots, whose tapes refer to it
  std::vector<std::unique_ptr<Slot>> slots;
  std::vector<Cell> cells;         // indexed like plan.of
  std::vector<Outgoing> outgoing;  // ring buffer
  size_t next_outgoing = 0;
  Buffer boundary, seed;
  Buffer sums;               // [slot, 2, loss] f64: losses and hits of the slot's microbatch
  int64_t buffer_bytes = 0;  // of one boundary buffer
  bool sized = false;        // boundary buffers are allocated, or none are needed
  const BoundaryOptions boundaries;
  std::unique_ptr<ActionGraphs> graphs;  // nullptr: every call is queued eagerly
  Shape usual;  // boundary shape of the first run, or of this one; shared by all its microbatches without
                // dynamic_shapes
  Preambles preambles;

  std::span<const MicroBatch> batches;  // of the running step
  Tensor losses, hits;
  int64_t sums_held = 0;  // losses of a slot: up to the last that a stage of this rank computes
  const GradHooks* hooks = nullptr;
  ActionTimes times;
  int live = 0, peak_live = 0;
};

PipelineExecutor::Impl::Impl(PipelineSchedule s, std::vector<PipelineStage*> local, const Mesh& m, const OpTable& o,
                             const DeviceApi& a, Stream c, ExecutorMemory memory, BoundaryOptions b,
                             const Backend* replayed)
    : schedule(std::move(s)),
      stages(std::move(local)),
      mesh(m),
      group(m.group(Axis::kPp)),
      tp(m.group(Axis::kTp)),
      rank(m.coord(Axis::kPp)),
      type(stages.empty() ? DType::kF32 : stages.front()->boundary_dtype()),
      ops(o),
      api(a),
      compute(c),
      grads(Buffer(memory.gradient_bytes, c.device, a)),
      boundaries(b),
      preambles(schedule.ranks > 1 ? b.preamble_bytes() : 0,
                4 * stages.size() * static_cast<size_t>(schedule.microbatches), a, c),
      times(a, c) {
  GT_CHECK(schedule.ranks == mesh.size(Axis::kPp), "schedule ", schedule.name, " is for ", schedule.ranks,
           " ranks, the mesh has ", mesh.size(Axis::kPp), " pipeline ranks");
  GT_CHECK(stages.size() == static_cast<size_t>(schedule.stages / schedule.ranks), "rank ", rank, " got ",
           stages.size(), " model chunks, schedule ", schedule.name, " has ", schedule.stages / schedule.ranks,
           " a rank");
  simulate(schedule);
  replicated = tp.size() > 1 && stages.front()->boundary_replicated();
  forward_only = is_forward_only(schedule);
  for (const PipelineStage* p : stages)
    for (const int loss : p->losses()) sums_held = std::max<int64_t>(sums_held, loss + 1);
  plan = plan_buffers(schedule, rank);
  for (int i = 0; i < plan.slots; ++i) {
    slots.push_back(std::make_unique<Slot>(memory.activation_bytes, grads, ops, api, compute));
    slots.back()->tape.set_recording(!forward_only);
  }
  if (replayed != nullptr) graphs = std::make_unique<ActionGraphs>(*replayed, compute, plan.slots);
  if (sums_held > 0) sums = Buffer(plan.slots * 2 * sums_held * size_of(DType::kF64), c.device, a);
  cells.resize(plan.of.size());
  outgoing.resize(static_cast<size_t>(std::max(plan.slots, 2)));
  const size_t actions = schedule.program[static_cast<size_t>(rank)].size();
  times.reserve(actions, 4 * actions + slots.size() + outgoing.size());
  sized = memory.boundary_bytes > 0 || plan.buffers == 0;
  if (sized && plan.buffers > 0) {
    buffer_bytes = memory.boundary_bytes / plan.buffers / kAlign * kAlign;
    boundary = Buffer(buffer_bytes * plan.buffers, compute.device, api);
  }
  // Upstream gradient of the last stage's loss, a mere trigger: the loss rule has its gradient already
  // (MicroBatch::dloss).
  const double one = 1;
  seed = Buffer(sizeof one, compute.device, api);
  if (compute.device.kind != DeviceKind::kNull) {
    api.copy(seed.data(), &one, sizeof one, compute);
    api.synchronize(compute);
  }
}

void PipelineExecutor::Impl::run(std::span<const MicroBatch> microbatches, Tensor out_losses,
                                 const GradHooks& step_hooks, Tensor out_hits) {
  GT_CHECK(microbatches.size() == static_cast<size_t>(schedule.microbatches), "schedule ", schedule.name, " takes ",
           schedule.microbatches, " microbatches, got ", microbatches.size());
  const int64_t needed = sums_held * schedule.microbatches;
  for (const Tensor& t : {out_losses, out_hits})
    GT_CHECK(!t.data || (t.dtype == DType::kF64 && t.numel() >= needed && t.numel() == out_losses.numel()),
             "losses are f64 [", needed, "] or more, got ", name_of(t.dtype), ' ', to_string(t.shape));
  batches = microbatches;
  losses = out_losses, hits = out_hits;
  hooks = &step_hooks;
  live = peak_live = 0;
  times.begin_run();
  size_buffers();
  if (graphs) graphs->begin_run(microbatches);
  const Program& program = schedule.program[static_cast<size_t>(rank)];
  for (size_t at = 0, next = 0; at < program.size(); at = next) {
    mesh.status().at(program[at].stage, program[at].microbatch);
    next = at + together(program, at);
    if (computes(program[at].act))
      compute_all(std::span(program).subspan(at, next - at));
    else
      perform(program[at]);
    poll();
  }
  drain_all();
  if (graphs) graphs->end_run();
  if (!times.asynchronous()) times.settle();
  mesh.status().nowhere();
}

void PipelineExecutor::Impl::perform(const Action& a) {
  switch (a.act) {
    case Act::kSendForward: return send_forward(a);
    case Act::kRecvForward: return recv(a, true);
    case Act::kSendBackward: return send_backward(a);
    case Act::kRecvBackward: return recv(a, false);
    case Act::kReduceGrads:
      if (hooks->reduce_grads) called(a, 0, [&] { hooks->reduce_grads(a.stage); });
      return;
    case Act::kReduceTied:
      if (hooks->reduce_tied) called(a, 0, [&] { hooks->reduce_tied(); });
      return;
    default: GT_CHECK(false, name(a), " is neither a message nor a reduction");
  }
}

// Returns how many actions from this one on are queued as one graph: adjacent compute actions of one microbatch.
// Without a pipeline that is the whole microbatch, on the last stage its forward and backward. 1 without graphs.
size_t PipelineExecutor::Impl::together(const Program& program, size_t at) const {
  size_t n = 1;
  while (graphs && at + n < program.size() && computes(program[at].act) && computes(program[at + n].act) &&
         program[at + n].stage == program[at].stage && program[at + n].microbatch == program[at].microbatch)
    ++n;
  return n;
}

void PipelineExecutor::Impl::compute_all(std::span<const Action> actions) {
  for (const Action& a : actions) prepare(a);
  const size_t begin = times.mark();
  const Collectives before = collectives();
  queue(actions, [&] {
    for (const Action& a : actions) work(a);
  });
  if (actions.front().act == Act::kForward) keep_losses(actions.front());
  timed(actions, begin, before);
  for (const Action& a : actions) conclude(a);
}

// Everything that must precede the action's calls.
void PipelineExecutor::Impl::prepare(const Action& a) {
  if (a.act == Act::kForward) return prepare_forward(a);
  if (a.act != Act::kBackwardWeight) prepare_backward(a);
  if (a.act != Act::kBackwardInput && hooks->begin_backward)
    hooks->begin_backward(a.stage, a.microbatch, a.microbatch == schedule.microbatches - 1);
}

// The action's calls, which are the same for all microbatches of a slot.
void PipelineExecutor::Impl::work(const Action& a) {
  switch (a.act) {
    case Act::kForward: return forward(a);
    case Act::kBackward: return backward(a, Pass::kFull);
    case Act::kBackwardInput: return backward(a, Pass::kInput);
    default: return slot(a).tape.run_deferred();
  }
}

void PipelineExecutor::Impl::conclude(const Action& a) {
  if (a.act == Act::kForward && forward_only) --live;
  if (a.act != Act::kBackward && a.act != Act::kBackwardWeight) return;
  Cell& c = cell(a);
  slot(a).tape.reset();
  if (c.from_next) grads.free(c.from_next);
  c.from_next = {};
  --live;
}

// No buffer is in use between runs, so a larger microbatch than before may reallocate them.
void PipelineExecutor::Impl::size_buffers() {
  if (usual.rank == 0 || boundaries.shapes_differ_between_runs) usual = stages.front()->boundary(batches.front());
  int64_t most = 0;
  for (const PipelineStage* s : stages)
    for (size_t k = 0; k < batches.size(); ++k) {
      const Shape shape = s->boundary(batches[k]);
      GT_CHECK(boundaries.dynamic_shapes || shape == usual, "microbatch ", k, " has the boundary ", to_string(shape),
               ", the microbatches of this run have ", to_string(usual),
               ": shapes may differ with parallel.dynamic_shapes only");
      most = std::max(most, shape.numel());
    }
  const int64_t bytes = align_up(most * size_of(type));
  const bool may_grow = boundaries.dynamic_shapes || boundaries.shapes_differ_between_runs;
  if (plan.buffers == 0 || (sized && (!may_grow || bytes <= buffer_bytes))) return;
  buffer_bytes = bytes;
  boundary = Buffer();
  boundary = Buffer(buffer_bytes * plan.buffers, compute.device, api);
  sized = true;
}

void PipelineExecutor::Impl::prepare_forward(const Action& a) {
  Cell& c = cell(a);
  Slot& s = slot(a);
  if (forward_only) {  // the slot's previous microbatch has been computed, but perhaps not sent
    wait(s.sending, s.sent);
    s.tape.reset();
  }
  c.x = {};
  if (!first(a)) {
    wait(c.receiving_x, as(Act::kRecvForward, a), sent_bytes(stage(a).boundary(batch(a))));
    if (!here(a.stage - 1)) require_announced(a, true);
    const Tensor in = here(a.stage - 1) ? cells[index(a, a.stage - 1)].y.value
                                        : buffer(assignment(a).input, stage(a).boundary(batch(a)));
    c.x = s.tape.input(in, true);
  }
  s.batch = input_of(a);
  if (!stage(a).losses().empty()) {
    s.batch.sums = slot_sums(a, false);
    if (hits) s.batch.hits = slot_sums(a, true);
  }
  peak_live = std::max(peak_live, ++live);
}

void PipelineExecutor::Impl::forward(const Action& a) {
  Cell& c = cell(a);
  if (!first(a) && !here(a.stage - 1)) complete(c.x.value);
  if (const Tensor& own = slot(a).batch.sums; own) api.zero(own.data, 2 * own.bytes(), compute);
  c.y = stage(a).forward(slot(a).tape, c.x, slot(a).batch);
  const Shape due = last(a) ? Shape{1} : stage(a).boundary(batch(a));
  const bool right = last(a) ? c.y.value.dtype == DType::kF64 : c.y.value.dtype == type && c.y.value.shape == due;
  GT_CHECK(right, name(a), " returned ", name_of(c.y.value.dtype), ' ', to_string(c.y.value.shape), " where the ",
           last(a) ? "sum of a loss is " : "boundary is ", name_of(last(a) ? DType::kF64 : type), ' ', to_string(due));
  const bool through = c.x.value && c.y.value.data == c.x.value.data;
  if (!forward_only || !through) return;  // else y aliases the input's buffer, which is free after F
  const Tensor own = slot(a).tape.scratch(c.y.value.shape, c.y.value.dtype);
  ops.copy({.src = c.y.value, .dst = own}, compute);
  c.y.value = own;
}

// Each slot has its own: a backward in the same graph frees what the forward left on the tape.
Tensor PipelineExecutor::Impl::slot_sums(const Action& a, bool of_hits) const {
  return sums.tensor({sums_held}, DType::kF64, (2 * assignment(a).slot + of_hits) * sums_held * size_of(DType::kF64));
}

void PipelineExecutor::Impl::keep_losses(const Action& a) {
  for (const int k : stage(a).losses())
    for (const bool of_hits : {false, true})
      if (const Tensor& to = of_hits ? hits : losses; to)
        ops.copy({.src = slot_sums(a, of_hits).slice(k, 1),
                  .dst = to.view({to.numel()}).slice(k * schedule.microbatches + a.microbatch, 1)},
                 compute);
}

void PipelineExecutor::Impl::send_forward(const Action& a) {
  Cell& c = cell(a);
  announce(a, c.y.value, true);
  Work& w = forward_only ? slot(a).sending : c.sending_y;
  slot(a).sent = a;
  called(a, sent_bytes(c.y.value.shape), [&] {
    w = group.send(message_shard(c.y.value), schedule.rank_of(a.stage + 1), tag_of(true, a.stage + 1), compute);
  });
}

void PipelineExecutor::Impl::announce(const Action& a, const Tensor& t, bool down) {
  if (!preambles.used()) return;
  const int to = a.stage + (down ? 1 : -1);
  preambles.send(
      group, note(a, down, true),
      preamble_of(t.shape, t.dtype, batch(a), a.microbatch, down ? BoundaryKind::kActivation : BoundaryKind::kGradient),
      schedule.rank_of(to), tag_of(down, to));
}

// With dynamic shapes the header is validated before the message is received. The program's messages follow one total
// order that is valid for synchronous sends, so waiting here cannot deadlock.
void PipelineExecutor::Impl::recv(const Action& a, bool down) {
  const Shape shape = stage(a).boundary(batch(a));
  Cell& c = cell(a);
  const int from = schedule.rank_of(a.stage + (down ? -1 : 1)), tag = tag_of(down, a.stage);
  if (preambles.used()) {
    Work& first = down ? c.preamble_x : c.preamble_dy;
    c.announced[down ? 0 : 1] = false;
    first = preambles.receive(group, note(a, down, false), announced(a, shape, down), from, tag);
    if (boundaries.dynamic_shapes) require_announced(a, down);
  }
  const Tensor into = buffer(down ? assignment(a).input : assignment(a).upstream, shape);
  (down ? c.receiving_x : c.receiving_dy) = group.recv(message_shard(into), from, tag, compute);
}

Preamble PipelineExecutor::Impl::announced(const Action& a, const Shape& shape, bool down) const {
  return preamble_of(shape, type, batch(a), a.microbatch, down ? BoundaryKind::kActivation : BoundaryKind::kGradient);
}

// Validates each message once.
void PipelineExecutor::Impl::require_announced(const Action& a, bool down) {
  Cell& c = cell(a);
  Work& w = down ? c.preamble_x : c.preamble_dy;
  if (!preambles.used() || c.announced[down ? 0 : 1]) return;
  const Action message = as(down ? Act::kRecvForward : Act::kRecvBackward, a);
  wait(w, message, boundaries.preamble_bytes());
  const Preamble expected = announced(a, stage(a).boundary(batch(a)), down);
  const Preamble& got = preambles.read(note(a, down, false));
  if (!as_announced(got, expected, boundaries.check_ordinals)) throw_mismatch(got, expected, name(message));
  c.announced[down ? 0 : 1] = true;
}

void PipelineExecutor::Impl::prepare_backward(const Action& a) {
  Cell& c = cell(a);
  wait(c.sending_y, as(Act::kSendForward, a));  // long complete: its gradient depends on it
  if (last(a)) return;
  wait(c.receiving_dy, as(Act::kRecvBackward, a), sent_bytes(c.y.value.shape));
  if (!here(a.stage + 1)) require_announced(a, false);
}

Tensor PipelineExecutor::Impl::upstream(const Action& a) {
  if (last(a)) return seed.tensor({1}, DType::kF64);
  Cell& c = cell(a);
  return here(a.stage + 1) ? c.from_next : buffer(assignment(a).upstream, c.y.value.shape);
}

void PipelineExecutor::Impl::backward(const Action& a, Pass pass) {
  Cell& c = cell(a);
  Tape& tape = slot(a).tape;
  const Tensor dy = upstream(a);
  if (!last(a) && !here(a.stage + 1)) complete(dy);
  tape.seed(c.y, dy);
  tape.backward(0, pass);
  if (!first(a)) take_input_gradient(a, c, tape);
}

// Keeps dL/dx beyond the lifetime of the tape: until it was sent, or read by the previous stage on this rank.
void PipelineExecutor::Impl::take_input_gradient(const Action& a, Cell& c, Tape& tape) {
  Tensor dx = tape.grad(c.x);
  GT_CHECK(dx, name(a), ": no gradient reached the input of the stage");
  if (grads.owns(dx)) {
    grads.retain(dx);
  } else {  // a boundary buffer or a saved tensor of the stage, whose memory is reused sooner
    const Tensor own = grads.alloc(dx.shape, dx.dtype);
    ops.copy({.src = dx, .dst = own}, compute);
    dx = own;
  }
  (here(a.stage - 1) ? cells[index(a, a.stage - 1)].from_next : c.dx) = dx;
}

void PipelineExecutor::Impl::send_backward(const Action& a) {
  Cell& c = cell(a);
  Outgoing& o = outgoing[next_outgoing];
  next_outgoing = (next_outgoing + 1) % outgoing.size();
  drain(o);
  o = {{}, c.dx, a};
  c.dx = {};
  announce(a, o.tensor, false);
  const int to = a.stage - 1;
  called(a, sent_bytes(o.tensor.shape),
         [&] { o.work = group.send(message_shard(o.tensor), schedule.rank_of(to), tag_of(false, to), compute); });
}

void PipelineExecutor::Impl::drain(Outgoing& o) {
  wait(o.work, o.action);
  if (o.tensor) grads.free(o.tensor);
  o.tensor = {};
}

void PipelineExecutor::Impl::drain_all() {
  for (size_t i = 0; i < outgoing.size(); ++i) drain(outgoing[(next_outgoing + i) % outgoing.size()]);
  next_outgoing = 0;
  preambles.finish();
  if (!forward_only) return;
  for (const auto& s : slots) {
    wait(s->sending, s->sent);
    s->tape.reset();
  }
}

void PipelineExecutor::Impl::poll() {
  mesh.group(Axis::kPp).poll();
  mesh.group(Axis::kDp).poll();
  mesh.group(Axis::kTp).poll();
  mesh.embedding_group().poll();
}

PipelineExecutor::PipelineExecutor(PipelineSchedule s, std::vector<PipelineStage*> local, const Mesh& mesh,
                                   const OpTable& ops, const DeviceApi& api, Stream compute, ExecutorMemory memory,
                                   BoundaryOptions boundaries, const Backend* replayed)
    : impl_(std::make_unique<Impl>(std::move(s), std::move(local), mesh, ops, api, compute, memory, boundaries,
                                   replayed)) {}

PipelineExecutor::~PipelineExecutor() = default;

void PipelineExecutor::run(std::span<const MicroBatch> microbatches, Tensor losses, const GradHooks& hooks,
                           Tensor hits) {
  impl_->run(microbatches, losses, hooks, hits);
}

const PipelineSchedule& PipelineExecutor::schedule() const { return impl_->schedule; }
int PipelineExecutor::slots() const { return impl_->plan.slots; }
int PipelineExecutor::peak_live() const { return impl_->peak_live; }
int64_t PipelineExecutor::activation_high_water() const {
  int64_t most = 0;
  for (const auto& s : impl_->slots) most = std::max(most, s->arena.high_water());
  return most;
}
int64_t PipelineExecutor::gradient_high_water() const { return impl_->grads.high_water(); }
int64_t PipelineExecutor::boundary_bytes() const { return impl_->boundary.bytes(); }
const ReplayCounts& PipelineExecutor::replays() const {
  static const ReplayCounts none;
  return impl_->graphs ? impl_->graphs->counts() : none;
}
HeldGraphs PipelineExecutor::graphs() const { return impl_->graphs ? impl_->graphs->held() : HeldGraphs{}; }
const Program& PipelineExecutor::computed() const { return impl_->times.order(); }
void PipelineExecutor::settle(const StreamClock& clock) {
  if (impl_->times.asynchronous()) impl_->times.settle(clock);
}
double PipelineExecutor::started() const { return impl_->times.started(); }
std::span<const ActionTime> PipelineExecutor::timeline() const { return impl_->times.computed(); }
std::span<const ActionTime> PipelineExecutor::transfers() const { return impl_->times.moved(); }
double PipelineExecutor::busy_seconds() const { return impl_->times.busy_seconds(); }
double PipelineExecutor::wait_seconds() const { return impl_->times.wait_seconds(); }

}  // namespace gt
