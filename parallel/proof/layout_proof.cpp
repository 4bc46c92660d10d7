#include "parallel/proof/layout_proof.h"

#include <execinfo.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "parallel/comm/call.h"
#include "parallel/comm/null_group.h"
#include "parallel/proof/claim.h"
#include "parallel/proof/op_rules.h"
#include "parallel/proof/op_types.h"
#include "parallel/proof/param_memory.h"
#include "parallel/proof/shadow.h"
#include "parallel/zero/unit_state.h"

namespace gt::proof {
namespace {

thread_local LayoutProof::Impl* running = nullptr;

// Axes that split tokens, and those that split parameters.
constexpr Along kTokens[] = {Along::kDp, Along::kDpInEp, Along::kCp, Along::kCpInEp},
                kSplitting[] = {Along::kDpInEp, Along::kCpInEp, Along::kTp};

Tensor bytes_at(const void* at, int64_t bytes, Device device) {
  return {static_cast<std::byte*>(const_cast<void*>(at)), {bytes}, DType::kByte, device};
}
}  // namespace

struct LayoutProof::Impl {
  Impl(const MeshShape& s, int r, std::optional<Fault> f, std::set<int64_t> t)
      : shape(s), rank(r), fault(std::move(f)), traced(std::move(t)), groups(*this) {
    GT_CHECK(supports(s), "the proof of a layout needs etp = tp, and ep and cp of which one divides the other: found ",
             s.coordinates(0), ", ep ", s.ep, ", cp ", s.cp);
    for (const auto& [a, size] : {std::pair{Along::kPp, s.pp},
                                  {Along::kDp, s.dp / dp_in_ep()},
                                  {Along::kDpInEp, dp_in_ep()},
                                  {Along::kCp, s.cp / cp_in_ep()},
                                  {Along::kCpInEp, cp_in_ep()},
                                  {Along::kTp, s.tp},
                                  {Along::kKv, s.kv_ranks},
                                  {Along::kTied, s.pp > 1 ? 2 : 1}})
      if (size > 1) along.push_back(a);
  }

  template <class Args>
  void op(const char* name, const Args& args);
  void tables(const char* name, const SegmentTable& table, const Tensor& out, bool updates);
  bool mark_updated(const std::byte* value, const LayoutType& gradient);  // false: no unit holds it
  void collective(CommOp, std::vector<Along> over, Tensor part, Tensor whole, ReduceOp = ReduceOp::kSum);
  void change_types(CommOp, const std::vector<Along>& over, Tensor part, Tensor whole, ReduceOp);
  void message(CommOp, Tensor t);
  void clear_padding(const Tensor& of);
  bool holds_partial(const Tensor& t, Along a) {
    bool any = false;
    shadow.change(t, [&](const LayoutType& type) { any = any || type[a].kind == Kind::kPartial; });
    return any;
  }
  void require_whole(const char* operand, const Tensor& t);
  void check_gradient(const Parameter&, const LayoutType&) const;
  void write_gradient(const Parameter&, const Tensor&, LayoutType);

  using Tensors = std::vector<std::pair<std::string, Tensor>>;
  [[noreturn]] void fail(const std::string& text, const Tensors& read) const {
    LayoutError error("the layout " + shape.coordinates(rank) + " is wrong: " + text, rank, shadow.call);
    for (const auto& [name, t] : read)
      if (const int64_t last = shadow.last_write(t); last > 0 && last < shadow.call)
        error.written.emplace_back(name, last);
    throw error;
  }
  void begin_call() {
    if (traced.count(++shadow.call) == 0) return;
    void* frames[32];
    const int n = backtrace(frames, 32);
    stacks[shadow.call].assign(frames, frames + n);
  }
  // Of what each rank has updated its own elements.
  void take_shards(LayoutType& t, const LayoutType& gradient, const std::vector<Along>& over) const {
    for (const Along a : over)
      if (has(a) && gradient[a].kind == Kind::kShard) t[a] = kShard;
  }
  bool has(Along a) const { return std::find(along.begin(), along.end(), a) != along.end(); }
  // ep numbers neighbours, as tp and cp do: it has ranks of cp first.
  int cp_in_ep() const { return std::min(shape.ep, shape.cp); }
  int dp_in_ep() const { return shape.ep / cp_in_ep(); }
  LayoutType data_type() const {
    LayoutType t;
    for (const Along a : kTokens) t[a] = split(0, true);
    return t;
  }
  // Type of a parameter along an axis, by its ShardSpec.
  static AxisType declared(const Parameter& p, Along a) {
    const AxisShard s = p.shard.of(a == Along::kTp ? Axis::kTp : Axis::kEp);
    return s.splits() ? split(s.dim) : kSame;
  }
  LayoutType type_of(std::string_view name, const Tensor& t) {
    if (t.shape.rank == 1) clear_padding(t);
    std::optional<LayoutType> type = shadow.read(t);
    if (!type && t.numel() == 1 && !shadow.written(t)) return {};  // scalars of the step, written by the host
    // Ids and positions of a microbatch are whole on every tp rank, which takes those of its rows.
    if (type && name == "tokens" && boundary.rows_split && inside(t, tokens) && t.numel() * shape.tp == tokens.numel())
      (*type)[Along::kTp] = split(0);
    if (!type) throw Violation{cat(name, " is read, of which parts differ or were never written")};
    const Parameter* p = memory.value_of(t);
    if (p != nullptr && !memory.is_gathered(*p, t)) throw Violation{cat(p->name, " is read and not gathered")};
    if (p != nullptr)
      for (const Along a : kSplitting)
        if (const AxisType d = declared(*p, a); a == Along::kTp || d.kind == Kind::kSplit) (*type)[a] = d;
    return *type;
  }

  LayoutType before_adding(std::string_view name, const Tensor& t) {
    const Parameter* p = memory.grad_of(t);
    if (p == nullptr) return type_of(name, t);
    shadow.change(t, [&](LayoutType& type) { type[Along::kTied] = type[Along::kKv] = kSame; });
    LayoutType type = type_of(name, t);
    for (const Along a : kSplitting)
      if (const AxisType d = declared(*p, a); d.kind == Kind::kSplit) type[a] = d;
    return type;
  }

  struct Group;
  struct Groups final : GroupFactory {
    explicit Groups(Impl& i) : impl(i) {}
    int world_rank() const override { return impl.rank; }
    int world_size() const override { return impl.shape.world(); }
    int local_rank() const override { return impl.rank; }
    int local_size() const override { return impl.shape.world(); }
    std::string_view backend() const override { return "null"; }
    std::unique_ptr<ProcessGroup> make(std::span<const int> ranks) override;
    Impl& impl;
  };

  const MeshShape shape;
  const int rank;
  const std::optional<Fault> fault;
  const std::set<int64_t> traced;
  std::map<int64_t, std::vector<void*>> stacks;
  std::vector<Site> sites;
  Groups groups;
  Shadow shadow;
  std::vector<Along> along;  // axes of more than one rank
  ParamMemory memory;
  Tensor tokens;
  Boundary boundary;
  int64_t ops = 0, messages = 0;
};

namespace {

std::vector<Along> axes_of(AxisSet set) {
  std::vector<Along> out;
  const auto add = [&](Along a, AxisSet of) {
    for (const Axis axis : {Axis::kPp, Axis::kDp, Axis::kCp, Axis::kTp, Axis::kExpertDp, Axis::kEp, Axis::kEtp})
      if (of.has(axis) && set.has(axis)) return out.push_back(a);
  };
  add(Along::kPp, Axis::kPp);
  add(Along::kDp, {Axis::kDp, Axis::kExpertDp}), add(Along::kDpInEp, {Axis::kDp, Axis::kEp});
  add(Along::kCp, {Axis::kCp, Axis::kExpertDp}), add(Along::kCpInEp, {Axis::kCp, Axis::kEp});
  add(Along::kTp, {Axis::kTp, Axis::kEtp});
  return out;
}

struct TypeHook {
  template <class A>
  static void before(const char* name, const A& args) {
    if (running != nullptr) running->op(name, args);
  }
};

}  // namespace

// A gradient along tp, and of experts along ep, is what the parameter's sharding requires.
void LayoutProof::Impl::check_gradient(const Parameter& p, const LayoutType& is) const {
  for (const Along a : kSplitting) {
    AxisType expected = declared(p, a);
    if (a == Along::kTp && p.shard.tp().dim == AxisShard::kPartial) expected = kPartial;
    if (a != Along::kTp && expected.kind != Kind::kSplit) continue;  // an axis of its domain, over which it is summed
    if (has(a) && is[a].kind != Kind::kZero && (is[a].kind != expected.kind || is[a].dim != expected.dim))
      throw Violation{cat("the gradient of ", p.name, " is ", to_string(is[a]), " along ", proof::name_of(a),
                          ", by its sharding ", to_string(expected))};
  }
}

// How the flat buffer holds it: along tp and ep the parameter has the slices.
// Of KV heads that several tp ranks hold, each has what its own query heads add.
void LayoutProof::Impl::write_gradient(const Parameter& p, const Tensor& to, LayoutType t) {
  check_gradient(p, t);
  for (const Along a : kSplitting)
    if (t[a].kind == Kind::kSplit) t[a] = kSame;
  if (p.tied_owner || !p.tied_to.empty()) t[Along::kTied] = kPartial;
  shadow.write(to, t);
  if (p.shard.tp().copies(shape.tp) == 1) return;
  const Tensor flat = p.grad.view({p.grad.numel()});
  const int64_t alone = unshared_elements(p, shape.tp);
  shadow.change(flat.slice(alone, flat.numel() - alone), [](LayoutType& type) { type[Along::kKv] = kPartial; });
}

template <class Args>
void LayoutProof::Impl::op(const char* name, const Args& args) try {
  ++ops;
  begin_call();
  if (std::is_same_v<Args, DequantizeInt8>) memory.changed();
  const std::string_view rule = rule_of(args);
  if (rule == kScalars)
    return each_operand(args, [&](const char* operand, const Tensor& t, OperandRole) { require_whole(operand, t); });
  if constexpr (OverSegments<Args>) {
    Tensor out;
    each_operand(args, [&](const char* operand, const Tensor& t, OperandRole) {
      if (std::string_view(operand) == "out" || std::string_view(operand) == "norms") out = t;
    });
    return tables(name, args.table, out, !std::is_same_v<Args, SumSquares> && !std::is_same_v<Args, LambMoments>);
  }
  const size_t behind = rule.find(" > ");
  const auto named = [&](std::string_view part, std::string_view operand) {
    for (size_t at = part.find(operand); at != std::string_view::npos; at = part.find(operand, at + 1))
      if ((at == 0 || part[at - 1] == ' ') && part[at + operand.size()] == ':') return true;
    return false;
  };
  std::vector<Operand> read, written;
  each_operand(args, [&](const char* operand, const Tensor& t, OperandRole role) {
    if (t.data == nullptr || t.numel() == 0) return;
    const bool reads = named(rule.substr(0, behind), operand);
    if (reads) read.push_back({operand, t, type_of(operand, t), false});
    if (named(rule.substr(behind + 2), operand))
      written.push_back({operand, t, {}, role == OperandRole::kInOut && !reads});
  });
  // What reads shards element by element, or changes its operand in place, writes a flat buffer, though that may begin
  // at a parameter.
  const bool flat = rule.find(":.") != std::string_view::npos;
  const auto flat_buffer = [&](const Operand& out) {
    return flat && std::any_of(read.begin(), read.end(), [&](const Operand& x) {
             return x.tensor.data == out.tensor.data || std::any_of(x.type.axes.begin(), x.type.axes.end(),
                                                                    [](AxisType t) { return t.kind == Kind::kShard; });
           });
  };
  for (Operand& out : written)
    if (out.adds) out.type = flat_buffer(out) ? type_of(out.name, out.tensor) : before_adding(out.name, out.tensor);
  const auto created = [](const Operand& out, Along a, int dim) {
    const bool splits = std::find(std::begin(kSplitting), std::end(kSplitting), a) != std::end(kSplitting);
    const Parameter* p = splits ? running->memory.grad_of(out.tensor) : nullptr;
    return p != nullptr && declared(*p, a) == split(dim);
  };
  // Gradients of KV heads and of tied tables are sums of several ranks from where they enter flat buffers.
  std::vector<Along> axes;
  for (const Along a : along)
    if (flat || (a != Along::kKv && a != Along::kTied)) axes.push_back(a);
  const std::vector<LayoutType> types = result_types(name, rule, read, written, axes, created);
  for (size_t k = 0; k < written.size(); ++k) {
    if (std::is_same_v<Args, StochasticRound> && mark_updated(written[k].tensor.data, types[k])) continue;
    const Parameter* p = flat_buffer(written[k]) ? nullptr : memory.grad_of(written[k].tensor);
    if (p != nullptr)
      write_gradient(*p, written[k].tensor, types[k]);
    else
      shadow.write(written[k].tensor, types[k]);
  }
} catch (const Violation& v) {
  Tensors read;
  for (const bool all : {false, true}) {
    if (!read.empty()) break;
    each_operand(args, [&](const char* operand, const Tensor& t, OperandRole role) {
      if (t.data != nullptr && role != OperandRole::kOut &&
          (all || v.text.find(cat(" ", operand, " is ")) != v.text.npos))
        read.emplace_back(operand, t);
    });
  }
  fail(v.text.rfind(name, 0) == 0 ? v.text : cat(name, ": ", v.text), read);
}

// Norms count every element of a flat buffer on one rank (split_by_owner). Optimizers write what they hold: the rest of
// an unsharded buffer is then of the step before, until it is gathered.
void LayoutProof::Impl::tables(const char* name, const SegmentTable& table, const Tensor& out, bool updates) {
  LayoutType sums;
  for (const Segment& s : table.segments()) {
    const Tensor grad = bytes_at(s.grad, s.count * size_of(table.grad), out.device);
    const std::optional<LayoutType> type = shadow.read(grad);
    if (!type) throw Violation{"a gradient is read, of which parts differ or were never written"};
    const bool flat = std::any_of(memory.units().begin(), memory.units().end(),
                                  [&](const FlatMemory& f) { return inside(grad, f.grads); });
    for (const Along a : along) {
      const Kind kind = (*type)[a].kind;
      if (kind == Kind::kPartial)
        fail(cat(name, ": a gradient is partial sums along ", proof::name_of(a)), {{"the gradient", grad}});
      const bool once = a != Along::kTied && a != Along::kKv;
      if (once && (flat || (kind != Kind::kSame && kind != Kind::kZero))) sums[a] = kPartial;
    }
    if (!updates) continue;
    for (float* moment : {s.m, s.v})
      if (moment != nullptr) shadow.write(bytes_at(moment, s.count * size_of(DType::kF32), out.device), *type);
    if (!mark_updated(s.value != nullptr ? s.value : s.master, *type))  // scratch of values that are rounded afterwards
      shadow.change(bytes_at(s.master, s.count * size_of(DType::kF32), out.device),
                    [&](LayoutType& t) { take_shards(t, *type, along); });
  }
  if (!updates && out && table.count > 0) shadow.write(out, sums);
}

bool LayoutProof::Impl::mark_updated(const std::byte* value, const LayoutType& gradient) {
  bool found = false;
  for (const FlatMemory& f : memory.units()) {
    if (!inside(bytes_at(value, 1, f.values.device), f.values)) continue;
    shadow.change(f.values, [&](LayoutType& t) { take_shards(t, gradient, axes_of(f.domain)); });
    memory.updated(f);
    found = true;
  }
  return found;
}

// What is the same for a whole step has been summed over all ranks.
void LayoutProof::Impl::require_whole(const char* operand, const Tensor& t) {
  if (t.data == nullptr || t.numel() == 0) return;
  shadow.change(t, [&](const LayoutType& type) {
    for (const Along a : along)
      if (type[a].kind == Kind::kPartial) throw Violation{cat(operand, " is partial sums along ", proof::name_of(a))};
  });
}

// The padding of a flat buffer takes part in its collectives, and nothing writes it.
void LayoutProof::Impl::clear_padding(const Tensor& of) {
  LayoutType zeros;
  zeros.axes.fill(kZero);
  for (const FlatMemory& f : memory.units())
    for (const auto& [flat, shards] : {std::pair{f.values, f.values_sharded}, {f.grads, f.grads_sharded}})
      if (!shards && flat.numel() > f.padding && inside(of, flat))
        shadow.write(flat.slice(flat.numel() - f.padding, f.padding), zeros);
}

void LayoutProof::Impl::collective(CommOp op, std::vector<Along> over, Tensor part, Tensor whole, ReduceOp how) {
  ++messages;
  begin_call();
  if (part.shape.rank == 1) clear_padding(whole);
  memory.changed();
  // The embedding group has the members of pp where there are two stages.
  const bool gradient = std::any_of(memory.units().begin(), memory.units().end(),
                                    [&](const FlatMemory& f) { return inside(whole, f.grads); });
  if (gradient && over == std::vector{Along::kPp}) over = {Along::kTied};
  // Those that hold one KV head may be all tp ranks.
  if (over == std::vector{Along::kTp} && shape.kv_ranks == shape.tp && holds_partial(whole, Along::kKv))
    over = {Along::kKv};
  const Site site{op, over, part.shape, whole.shape};
  if (std::find(sites.begin(), sites.end(), site) == sites.end()) sites.push_back(site);
  if (!fault || !(fault->site == site)) return change_types(op, over, part, whole, how);
  for (int i = 0; i < fault->times; ++i) change_types(op, fault->over, part, whole, how);
}

void LayoutProof::Impl::change_types(CommOp op, const std::vector<Along>& over, Tensor part, Tensor whole,
                                     ReduceOp how) {
  const char* name = name_of(op);
  const auto wrong = [&](AxisType t, Along a) {
    const bool sums = op == CommOp::kAllReduce || op == CommOp::kReduceScatter;
    const char* expected = !sums                   ? "shards or a split along dimension 0"
                           : how == ReduceOp::kSum ? "partial sums"
                                                   : "no partial sums";
    fail(cat(name, " over ", proof::name_of(a), " of what is ", to_string(t), ", expected ", expected, ": ",
             to_string(whole.shape)),
         {{"the tensor", sums ? whole : part}});
  };
  const auto sum = [&](Tensor t, AxisType to) {
    shadow.change(t, [&](LayoutType& type) {
      for (const Along a : over) {
        if (how == ReduceOp::kSum ? type[a].kind != Kind::kPartial && type[a].kind != Kind::kZero
                                  : type[a].kind == Kind::kPartial)
          wrong(type[a], a);
        type[a] = to;
      }
    });
  };
  switch (op) {
    case CommOp::kAllReduce: return sum(whole, kSame);
    case CommOp::kReduceScatter: {
      sum(whole, whole.shape.rank > 1 ? split(0) : kShard);
      std::optional<LayoutType> type = shadow.read(whole);
      if (!type) fail(cat(name, ": parts of ", to_string(whole.shape), " differ"), {{"the tensor", whole}});
      return shadow.write(part, *type);
    }
    case CommOp::kAllGather: {
      std::optional<LayoutType> type = shadow.read(part);
      if (!type) fail(cat(name, ": parts of ", to_string(part.shape), " differ"), {{"the tensor", part}});
      for (const Along a : over) {
        const AxisType t = (*type)[a];
        if (t.kind != Kind::kShard && t.kind != Kind::kZero && !(t.kind == Kind::kSplit && t.dim == 0)) wrong(t, a);
        (*type)[a] = kSame;
      }
      memory.gathered(part, whole);
      return shadow.write(whole, *type);
    }
    case CommOp::kAllToAll:
    case CommOp::kAllToAllV: {  // rows that ranks split remain so; unequal ones go to the experts, or return from them
      std::optional<LayoutType> type = shadow.read(part);
      if (!type) fail(cat(name, ": parts of ", to_string(part.shape), " differ"), {{"the tensor", part}});
      for (const Along a : over) {
        AxisType& t = (*type)[a];
        if (t.kind != Kind::kZero && !(t.kind == Kind::kSplit && t.dim == 0)) wrong(t, a);
        t.sequences = false;
        if (op == CommOp::kAllToAllV && t.kind == Kind::kSplit) t.experts = !t.experts;
      }
      return shadow.write(whole, *type);
    }
    default: return;
  }
}

// Stages agree on what they send: activations and their gradients are of the microbatch's tokens.
void LayoutProof::Impl::message(CommOp op, Tensor t) {
  ++messages;
  begin_call();
  LayoutType expected = data_type();
  if (boundary.rows_split) expected[Along::kTp] = split(0);
  const bool slice = t.numel() < boundary.elements;
  if (op == CommOp::kRecv) {
    if (slice) expected[Along::kTp] = kShard;
    return shadow.write(t, expected);
  }
  const std::optional<LayoutType> is = shadow.read(t);
  if (!is) return;  // not a tensor of a stage: a header
  for (const Along a : along)
    if (a <= Along::kTp && a != Along::kPp && (*is)[a].kind != Kind::kZero && !((*is)[a] == expected[a]))
      fail(cat("a stage sends what is ", to_string((*is)[a]), " along ", proof::name_of(a),
               ", the next one reads it as ", to_string(expected[a])),
           {{"the tensor", t}});
}

struct LayoutProof::Impl::Group final : ProcessGroup {
  Group(Impl& i, int at, int size, std::vector<Along> axes)
      : ProcessGroup(at, size), impl(i), over(std::move(axes)), inner(at, size) {}
  std::string_view backend() const override { return "null"; }
  Work all_reduce(Tensor t, ReduceOp how, Stream s) override {
    observed(CommOp::kAllReduce, t, t, how);
    return inner.all_reduce(t, how, s);
  }
  Work all_gather(Tensor part, Tensor whole, Stream s) override {
    observed(CommOp::kAllGather, part, whole);
    return inner.all_gather(part, whole, s);
  }
  Work reduce_scatter(Tensor whole, Tensor part, Stream s) override {
    observed(CommOp::kReduceScatter, part, whole);
    return inner.reduce_scatter(whole, part, s);
  }
  Work broadcast(Tensor t, int root, Stream s) override { return inner.broadcast(t, root, s); }
  Work all_to_all(Tensor from, Tensor to, const PeerCounts& counts, Stream s) override {
    observed(counts.send.empty() ? CommOp::kAllToAll : CommOp::kAllToAllV, from, to);
    return inner.all_to_all(from, to, counts, s);
  }
  Work send(Tensor t, int to, int tag, Stream s) override {
    impl.message(CommOp::kSend, t);
    return inner.send(t, to, tag, s);
  }
  Work recv(Tensor t, int from, int tag, Stream s) override {
    impl.message(CommOp::kRecv, t);
    return inner.recv(t, from, tag, s);
  }
  void barrier() override { inner.barrier(); }
  const CommCounters& counters() const override { return inner.counters(); }
  void wait(uint64_t, Stream) override {}
  void observed(CommOp op, const Tensor& part, const Tensor& whole, ReduceOp how = ReduceOp::kSum) {
    if (size() > 1) impl.collective(op, over, part, whole, how);
  }

  Impl& impl;
  const std::vector<Along> over;
  NullGroup inner;
};

std::unique_ptr<ProcessGroup> LayoutProof::Impl::Groups::make(std::span<const int> ranks) {
  const auto at = static_cast<int>(std::find(ranks.begin(), ranks.end(), impl.rank) - ranks.begin());
  const auto differs = [&](auto coordinate) {
    return std::any_of(ranks.begin(), ranks.end(), [&](int r) { return coordinate(r) != coordinate(impl.rank); });
  };
  const auto on = [&](Axis a) { return [&impl = impl, a](int r) { return impl.shape.coord(a, r); }; };
  const auto part = [&](Axis a, int inside, bool of_ep) {
    return [&impl = impl, a, inside, of_ep](int r) {
      const int at = impl.shape.coord(a, r);
      return of_ep ? at % inside : at / inside;
    };
  };
  std::vector<Along> over;
  if (differs(on(Axis::kPp))) over.push_back(Along::kPp);
  if (differs(part(Axis::kDp, impl.dp_in_ep(), false))) over.push_back(Along::kDp);
  if (differs(part(Axis::kDp, impl.dp_in_ep(), true))) over.push_back(Along::kDpInEp);
  if (differs(part(Axis::kCp, impl.cp_in_ep(), false))) over.push_back(Along::kCp);
  if (differs(part(Axis::kCp, impl.cp_in_ep(), true))) over.push_back(Along::kCpInEp);
  const auto size = static_cast<int>(ranks.size());
  if (differs(on(Axis::kTp))) over.push_back(size < impl.shape.tp ? Along::kKv : Along::kTp);
  if (over == std::vector{Along::kPp} && size < impl.shape.pp) over = {Along::kTied};
  return std::make_unique<Group>(impl, at, size, over);
}

namespace {

void zero(void* to, int64_t bytes, Stream s) {
  if (running != nullptr) {
    LayoutType zeros;
    zeros.axes.fill(kZero);
    running->begin_call();
    running->shadow.write(bytes_at(to, bytes, s.device), zeros);
    running->memory.changed();
  }
}

// What the host writes, it writes on every rank.
void copy(void* to, const void* from, int64_t bytes, Stream s) {
  if (running == nullptr) return;
  running->begin_call();
  const Tensor source = bytes_at(from, bytes, s.device);
  running->shadow.write(bytes_at(to, bytes, s.device), running->shadow.read(source).value_or(LayoutType{}));
}

}  // namespace

std::string to_string(const Site& s) {
  std::string over;
  for (const Along a : s.over) over += cat(over.empty() ? "" : ", ", name_of(a));
  return cat(name_of(s.op), " over ", over, " of ", to_string(s.whole));
}

LayoutProof::LayoutProof(const MeshShape& shape, int rank, std::optional<Fault> fault, std::set<int64_t> traced)
    : impl_(std::make_unique<Impl>(shape, rank, std::move(fault), std::move(traced))) {
  GT_CHECK(running == nullptr, "a layout proof is running on this thread");
  running = impl_.get();
}
LayoutProof::~LayoutProof() { running = nullptr; }

const Backend& LayoutProof::backend() const {
  static const DeviceApi device = [] {
    DeviceApi d = *null_backend().device;
    d.zero = zero;
    d.copy = copy;
    return d;
  }();
  static const Backend observed = [] {
    Backend b = null_backend();
    b.ops = &decorate<TypeHook>(*null_backend().ops);
    b.device = &device;
    return b;
  }();
  return observed;
}

GroupFactory& LayoutProof::factory() { return impl_->groups; }
int64_t LayoutProof::ops() const { return impl_->ops; }
int64_t LayoutProof::messages() const { return impl_->messages; }
const std::vector<Site>& LayoutProof::sites() const { return impl_->sites; }
const std::map<int64_t, std::vector<void*>>& LayoutProof::stacks() const { return impl_->stacks; }

bool LayoutProof::supports(const MeshShape& s) {
  return s.ep == 1 || (s.size(Axis::kEtp) == s.tp && std::max(s.ep, s.cp) % std::min(s.ep, s.cp) == 0);
}

void LayoutProof::begin(const ParamStore& store, const Tensor& tokens, Boundary boundary) {
  Impl& i = *impl_;
  i.boundary = boundary;
  i.tokens = tokens;
  i.memory.begin(store);
  const int64_t calls = std::exchange(i.shadow.call, 0);  // what is there before the first step, no call writes
  i.shadow.write(tokens, i.data_type());
  for (const FlatMemory& f : i.memory.units()) {
    LayoutType type;
    for (const Along a : axes_of(f.domain))
      if (f.values_sharded) type[a] = kShard;
    i.shadow.write(f.values, type);
    for (const Along a : axes_of(f.domain)) type[a] = f.masters_sharded ? kShard : kSame;
    i.shadow.write(f.masters, type);
  }
  i.shadow.call = calls;
}

void sliced(const Tensor& t, Axis axis) {
  if (running == nullptr) return;
  for (const Along a : axes_of(axis))
    if (running->has(a)) running->shadow.change(t, [&](LayoutType& type) { type[a] = split(0); });
}

void fresh(const Tensor& t) {
  if (running != nullptr) running->shadow.forget(t);
}

void held_by_one(const Tensor& t, AxisSet axes) {
  if (running == nullptr) return;
  for (const Along a : axes_of(axes))
    if (running->has(a)) running->shadow.change(t, [&](LayoutType& type) { type[a] = kPartial; });
}

}  // namespace gt::proof
