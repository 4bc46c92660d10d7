#include "parallel/proof/layout_proof.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "parallel/comm/call.h"
#include "parallel/comm/null_group.h"
#include "parallel/proof/claim.h"
#include "parallel/proof/op_rules.h"
#include "parallel/proof/op_types.h"
#include "parallel/proof/shadow.h"
#include "parallel/zero/unit_state.h"

namespace gt::proof {
namespace {

thread_local LayoutProof::Impl* running = nullptr;

Tensor bytes_at(const void* at, int64_t bytes, Device device) {
  return {static_cast<std::byte*>(const_cast<void*>(at)), {bytes}, DType::kByte, device};
}
bool inside(const Tensor& t, const Tensor& of) {
  return of.data != nullptr && t.data >= of.data && t.data + t.bytes() <= of.data + of.bytes();
}

}  // namespace

struct LayoutProof::Impl {
  Impl(const MeshShape& s, int r, std::optional<Fault> f) : shape(s), rank(r), fault(std::move(f)), groups(*this) {
    for (const auto& [a, size] : {std::pair{Along::kPp, s.pp},
                                  {Along::kDp, s.dp},
                                  {Along::kCp, s.cp},
                                  {Along::kTp, s.tp},
                                  {Along::kKv, s.kv_ranks},
                                  {Along::kTied, s.pp > 1 ? 2 : 1}})
      if (size > 1) along.push_back(a);
  }

  template <class Args>
  void op(const char* name, const Args& args);
  void tables(const SegmentTable& table, const Tensor& out, bool updates);
  void mark_updated(const std::byte* value, const LayoutType& gradient);
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

  [[noreturn]] void fail(const std::string& text) const {
    throw Error("the layout " + shape.coordinates(rank) + " is wrong: " + text, Exit::kInternal);
  }
  bool has(Along a) const { return std::find(along.begin(), along.end(), a) != along.end(); }
  LayoutType data_type() const {
    LayoutType t;
    t[Along::kDp] = t[Along::kCp] = split(0, true);
    return t;
  }
  // Whose value or gradient a tensor is a part of; nullptr: of none.
  const Parameter* value_of(const Tensor& t) const { return find(t, &Parameter::value); }
  const Parameter* grad_of(const Tensor& t) const { return find(t, &Parameter::grad); }
  const Parameter* find(const Tensor& t, Tensor Parameter::*member) const {
    if (std::exchange(moved, false)) list_addresses();
    const auto& list = member == &Parameter::value ? values : grads;
    auto it = std::upper_bound(list.begin(), list.end(), t.data,
                               [](const std::byte* at, const auto& e) { return at < e.first; });
    if (it == list.begin()) return nullptr;
    const Tensor& of = (--it)->second->*member;
    return inside(t, of) && t.shape.rank == of.shape.rank ? it->second : nullptr;  // else a flat buffer
  }
  void list_addresses() const {
    values.clear();
    grads.clear();
    for (const Parameter* p : params) {
      if (p->value.data != nullptr) values.emplace_back(p->value.data, p);
      if (p->grad.data != nullptr) grads.emplace_back(p->grad.data, p);
    }
    std::sort(values.begin(), values.end());
    std::sort(grads.begin(), grads.end());
  }
  // Type of a parameter along tp, by its ShardSpec.
  static AxisType declared(const Parameter& p) {
    const AxisShard tp = p.shard.tp();
    return tp.splits() ? split(tp.dim) : kSame;
  }
  LayoutType type_of(std::string_view name, const Tensor& t) {
    if (t.shape.rank == 1) clear_padding(t);
    std::optional<LayoutType> type = shadow.read(t);
    if (!type && t.numel() == 1 && !shadow.written(t)) return {};  // scalars of the step, written by the host
    // Ids and positions of a microbatch are whole on every tp rank, which takes those of its rows.
    if (type && name == "tokens" && boundary.rows_split && inside(t, tokens) && t.numel() * shape.tp == tokens.numel())
      (*type)[Along::kTp] = split(0);
    if (!type) throw Violation{cat(name, " is read, of which parts differ or were never written")};
    if (const Parameter* p = value_of(t)) (*type)[Along::kTp] = declared(*p);
    return *type;
  }

  LayoutType before_adding(std::string_view name, const Tensor& t) {
    const Parameter* p = grad_of(t);
    if (p == nullptr) return type_of(name, t);
    shadow.change(t, [&](LayoutType& type) { type[Along::kTied] = type[Along::kKv] = kSame; });
    LayoutType type = type_of(name, t);
    if (const AxisType d = declared(*p); d.kind == Kind::kSplit) type[Along::kTp] = d;
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
  std::vector<Site> sites;
  Groups groups;
  Shadow shadow;
  std::vector<Along> along;  // axes of more than one rank
  std::vector<const Parameter*> params;
  // By address; those of sharded buffers change with what a rank gathers and reduces.
  mutable std::vector<std::pair<const std::byte*, const Parameter*>> values, grads;
  mutable bool moved = true;
  bool sharded = false;  // some are
  std::vector<FlatMemory> flats;
  Tensor tokens;
  Boundary boundary;
  int64_t ops = 0, messages = 0;
};

namespace {

// The ranks that replicate experts, all of which are on every rank (ep 1), are those of dp x cp.
std::vector<Along> axes_of(AxisSet set) {
  if (set.has(Axis::kExpertDp)) set = kDenseDomain;
  std::vector<Along> out;
  for (const auto& [axis, a] :
       {std::pair{Axis::kPp, Along::kPp}, {Axis::kDp, Along::kDp}, {Axis::kCp, Along::kCp}, {Axis::kTp, Along::kTp}})
    if (set.has(axis)) out.push_back(a);
  return out;
}

struct TypeHook {
  template <class A>
  static void before(const char* name, const A& args) {
    if (running != nullptr) running->op(name, args);
  }
};

}  // namespace

// A gradient along tp is what the parameter's sharding requires, and a sum over the ranks that share its tokens.
void LayoutProof::Impl::check_gradient(const Parameter& p, const LayoutType& is) const {
  const AxisShard tp = p.shard.tp();
  const AxisType expected = tp.dim == AxisShard::kPartial ? kPartial : declared(p);
  if (has(Along::kTp) && is[Along::kTp].kind != Kind::kZero && !(is[Along::kTp] == expected))
    throw Violation{cat("the gradient of ", p.name, " is ", to_string(is[Along::kTp]), " along tp, by its sharding ",
                        to_string(expected))};
}

// How the flat buffer holds it: along tp the parameter has the slices.
// Of KV heads that several tp ranks hold, each has what its own query heads add.
void LayoutProof::Impl::write_gradient(const Parameter& p, const Tensor& to, LayoutType t) {
  check_gradient(p, t);
  if (t[Along::kTp].kind == Kind::kSplit) t[Along::kTp] = kSame;
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
  moved = moved || std::is_same_v<Args, DequantizeInt8>;
  const std::string_view rule = rule_of(args);
  if (rule == kScalars)
    return each_operand(args, [&](const char* operand, const Tensor& t, OperandRole) { require_whole(operand, t); });
  if constexpr (OverSegments<Args>) {
    Tensor out;
    each_operand(args, [&](const char* operand, const Tensor& t, OperandRole) {
      if (std::string_view(operand) == "out" || std::string_view(operand) == "norms") out = t;
    });
    return tables(args.table, out, !std::is_same_v<Args, SumSquares> && !std::is_same_v<Args, LambMoments>);
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
    if (!named(rule.substr(behind + 2), operand)) return;
    const bool adds = role == OperandRole::kInOut && !reads;
    LayoutType before;
    if (adds) before = before_adding(operand, t);
    written.push_back({operand, t, before, adds});
  });
  const auto created = [](const Operand& out, Along a, int dim) {
    const Parameter* p = a == Along::kTp ? running->grad_of(out.tensor) : nullptr;
    return p != nullptr && declared(*p) == split(dim);
  };
  // Gradients of KV heads and of tied tables are sums of several ranks from where they enter flat buffers.
  std::vector<Along> axes;
  const bool flat = rule.find(":.") != std::string_view::npos;
  for (const Along a : along)
    if (flat || (a != Along::kKv && a != Along::kTied)) axes.push_back(a);
  const std::vector<LayoutType> types = result_types(name, rule, read, written, axes, created);
  for (size_t k = 0; k < written.size(); ++k) {
    const Parameter* p = grad_of(written[k].tensor);
    if (p != nullptr)
      write_gradient(*p, written[k].tensor, types[k]);
    else
      shadow.write(written[k].tensor, types[k]);
  }
} catch (const Violation& v) { fail(v.text.rfind(name, 0) == 0 ? v.text : cat(name, ": ", v.text)); }

// Norms count every element of a flat buffer on one rank (split_by_owner). Optimizers write what they hold: the rest of
// an unsharded buffer is then of the step before, until it is gathered.
void LayoutProof::Impl::tables(const SegmentTable& table, const Tensor& out, bool updates) {
  LayoutType sums;
  for (const Segment& s : table.segments()) {
    const Tensor grad = bytes_at(s.grad, s.count * size_of(table.grad), out.device);
    const std::optional<LayoutType> type = shadow.read(grad);
    if (!type) throw Violation{"a gradient is read, of which parts differ or were never written"};
    const bool flat =
        std::any_of(flats.begin(), flats.end(), [&](const FlatMemory& f) { return inside(grad, f.grads); });
    for (const Along a : along) {
      const Kind kind = (*type)[a].kind;
      if (kind == Kind::kPartial) throw Violation{cat("a gradient is partial sums along ", proof::name_of(a))};
      const bool once = a != Along::kTied && a != Along::kKv;
      if (once && (flat || (kind != Kind::kSame && kind != Kind::kZero))) sums[a] = kPartial;
    }
    if (!updates) continue;
    for (float* moment : {s.m, s.v})
      if (moment != nullptr) shadow.write(bytes_at(moment, s.count * size_of(DType::kF32), out.device), *type);
    mark_updated(s.value != nullptr ? s.value : s.master, *type);
  }
  if (!updates && out && table.count > 0) shadow.write(out, sums);
}

void LayoutProof::Impl::mark_updated(const std::byte* value, const LayoutType& gradient) {
  for (const FlatMemory& f : flats) {
    if (!inside(bytes_at(value, 1, f.values.device), f.values)) continue;
    for (const Along a : axes_of(f.domain))
      if (has(a) && gradient[a].kind == Kind::kShard) shadow.change(f.values, [&](LayoutType& t) { t[a] = kShard; });
  }
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
  for (const FlatMemory& f : flats)
    for (const auto& [flat, shards] : {std::pair{f.values, f.values_sharded}, {f.grads, f.grads_sharded}})
      if (!shards && flat.numel() > f.padding && inside(of, flat))
        shadow.write(flat.slice(flat.numel() - f.padding, f.padding), zeros);
}

void LayoutProof::Impl::collective(CommOp op, std::vector<Along> over, Tensor part, Tensor whole, ReduceOp how) {
  ++messages;
  if (part.shape.rank == 1) clear_padding(whole);
  moved = moved || sharded;
  // The embedding group has the members of pp where there are two stages.
  const bool gradient =
      std::any_of(flats.begin(), flats.end(), [&](const FlatMemory& f) { return inside(whole, f.grads); });
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
    fail(cat(name, " over ", proof::name_of(a), " of ", to_string(t), ": [", to_string(whole.shape), "]"));
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
      if (!type) fail(cat(name, ": parts of ", to_string(whole.shape), " differ"));
      return shadow.write(part, *type);
    }
    case CommOp::kAllGather: {
      std::optional<LayoutType> type = shadow.read(part);
      if (!type) fail(cat(name, ": parts of ", to_string(part.shape), " differ"));
      for (const Along a : over) {
        const AxisType t = (*type)[a];
        if (t.kind != Kind::kShard && t.kind != Kind::kZero && !(t.kind == Kind::kSplit && t.dim == 0)) wrong(t, a);
        (*type)[a] = kSame;
      }
      return shadow.write(whole, *type);
    }
    case CommOp::kAllToAll:
    case CommOp::kAllToAllV: {  // rows that ranks split remain so
      const std::optional<LayoutType> type = shadow.read(part);
      if (!type) fail(cat(name, ": parts of ", to_string(part.shape), " differ"));
      for (const Along a : over)
        if (const AxisType t = (*type)[a]; t.kind != Kind::kZero && !(t.kind == Kind::kSplit && t.dim == 0))
          wrong(t, a);
      return shadow.write(whole, *type);
    }
    default: return;
  }
}

// Stages agree on what they send: activations and their gradients are of the microbatch's tokens.
void LayoutProof::Impl::message(CommOp op, Tensor t) {
  ++messages;
  LayoutType expected = data_type();
  if (boundary.rows_split) expected[Along::kTp] = split(0);
  const bool slice = t.numel() < boundary.elements;
  if (op == CommOp::kRecv) {
    if (slice) expected[Along::kTp] = kShard;
    return shadow.write(t, expected);
  }
  const std::optional<LayoutType> is = shadow.read(t);
  if (!is) return;  // not a tensor of a stage: a header
  for (const Along a : {Along::kDp, Along::kCp, Along::kTp})
    if (has(a) && (*is)[a].kind != Kind::kZero && !((*is)[a] == expected[a]))
      fail(cat("a stage sends what is ", to_string((*is)[a]), " along ", proof::name_of(a),
               ", the next one reads it as ", to_string(expected[a])));
}

struct LayoutProof::Impl::Group final : ProcessGroup {
  Group(Impl& i, int at, int size, std::vector<Along> axes)
      : ProcessGroup(at, size), impl(i), over(std::move(axes)), inner(at, size) {}
  std::string_view backend() const override { return "null"; }
  Work all_reduce(Tensor t, ReduceOp how, Stream s) override {
    if (size() > 1) impl.collective(CommOp::kAllReduce, over, t, t, how);
    return inner.all_reduce(t, how, s);
  }
  Work all_gather(Tensor part, Tensor whole, Stream s) override {
    if (size() > 1) impl.collective(CommOp::kAllGather, over, part, whole);
    return inner.all_gather(part, whole, s);
  }
  Work reduce_scatter(Tensor whole, Tensor part, Stream s) override {
    if (size() > 1) impl.collective(CommOp::kReduceScatter, over, part, whole);
    return inner.reduce_scatter(whole, part, s);
  }
  Work broadcast(Tensor t, int root, Stream s) override { return inner.broadcast(t, root, s); }
  Work all_to_all(Tensor from, Tensor to, const PeerCounts& counts, Stream s) override {
    if (size() > 1) impl.collective(counts.send.empty() ? CommOp::kAllToAll : CommOp::kAllToAllV, over, from, to);
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

  Impl& impl;
  const std::vector<Along> over;
  NullGroup inner;
};

std::unique_ptr<ProcessGroup> LayoutProof::Impl::Groups::make(std::span<const int> ranks) {
  const auto at = static_cast<int>(std::find(ranks.begin(), ranks.end(), impl.rank) - ranks.begin());
  const auto differs = [&](Axis a) {
    return std::any_of(ranks.begin(), ranks.end(),
                       [&](int r) { return impl.shape.coord(a, r) != impl.shape.coord(a, impl.rank); });
  };
  std::vector<Along> over;
  for (const auto& [axis, a] : {std::pair{Axis::kPp, Along::kPp}, {Axis::kDp, Along::kDp}, {Axis::kCp, Along::kCp}})
    if (differs(axis)) over.push_back(a);
  const auto size = static_cast<int>(ranks.size());
  if (differs(Axis::kTp)) over.push_back(size < impl.shape.tp ? Along::kKv : Along::kTp);
  if (over == std::vector{Along::kPp} && size < impl.shape.pp) over = {Along::kTied};
  return std::make_unique<Group>(impl, at, size, over);
}

namespace {

void zero(void* to, int64_t bytes, Stream s) {
  if (running != nullptr) {
    LayoutType zeros;
    zeros.axes.fill(kZero);
    running->shadow.write(bytes_at(to, bytes, s.device), zeros);
    running->moved = running->moved || running->sharded;
  }
}

// What the host writes, it writes on every rank.
void copy(void* to, const void* from, int64_t bytes, Stream s) {
  if (running == nullptr) return;
  const Tensor source = bytes_at(from, bytes, s.device);
  running->shadow.write(bytes_at(to, bytes, s.device), running->shadow.read(source).value_or(LayoutType{}));
}

}  // namespace

std::string to_string(const Site& s) {
  std::string over;
  for (const Along a : s.over) over += cat(over.empty() ? "" : ", ", name_of(a));
  return cat(name_of(s.op), " over ", over, " of ", to_string(s.whole));
}

LayoutProof::LayoutProof(const MeshShape& shape, int rank, std::optional<Fault> fault)
    : impl_(std::make_unique<Impl>(shape, rank, std::move(fault))) {
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

void LayoutProof::begin(const ParamStore& store, const Tensor& tokens, Boundary boundary) {
  Impl& i = *impl_;
  i.boundary = boundary;
  i.tokens = tokens;
  for (const Parameter* p : store.parameters()) i.params.push_back(p);
  i.flats = store.flat_memory();
  for (const FlatMemory& f : i.flats)
    i.sharded = i.sharded || f.values_sharded || f.grads_sharded || f.values.dtype == DType::kI8;
  i.shadow.write(tokens, i.data_type());
  for (const FlatMemory& f : i.flats) {
    LayoutType type;
    for (const Along a : axes_of(f.domain))
      if (f.values_sharded) type[a] = kShard;
    i.shadow.write(f.values, type);
    for (const Along a : axes_of(f.domain)) type[a] = f.masters_sharded ? kShard : kSame;
    i.shadow.write(f.masters, type);
  }
}

void sliced(const Tensor& t, Axis axis) {
  if (running == nullptr) return;
  for (const Along a : axes_of(axis))
    if (running->has(a)) running->shadow.change(t, [&](LayoutType& type) { type[a] = split(0); });
}

void held_by_one(const Tensor& t, AxisSet axes) {
  if (running == nullptr) return;
  for (const Along a : axes_of(axes))
    if (running->has(a)) running->shadow.change(t, [&](LayoutType& type) { type[a] = kPartial; });
}

}  // namespace gt::proof
