#include "kernels/op_cost.h"

#include <algorithm>
#include <initializer_list>
#include <tuple>

#include "kernels/core/fields.h"

namespace gt {
namespace {

double of(const Tensor& t) { return t ? static_cast<double>(t.bytes()) : 0; }
double all(std::initializer_list<Tensor> list) {
  double sum = 0;
  for (const Tensor& t : list) sum += of(t);
  return sum;
}
// Bytes of a result that is written, or read and written when accumulating.
double result(const Tensor& t, bool accumulate) { return of(t) * (accumulate ? 2 : 1); }

// Cost of an op that reads or writes each operand once.
template <class Args>
OpCost one_pass(const Args& args) {
  constexpr OpInfo kInfo = OpOf<Args>::kInfo;
  OpCost c{.kind = kInfo.kind};
  each_operand(args, [&](const char*, const Tensor& t, OperandRole role) {
    if (role != OperandRole::kControl) c.bytes += result(t, role == OperandRole::kInOut);
  });
  c.fused_bytes = kInfo.cost == CostRule::kPass ? c.bytes : 0;
  return c;
}

OpCost moves(OpClass kind, double bytes) { return {.kind = kind, .bytes = bytes, .fused_bytes = bytes}; }
OpCost moves(OpClass kind, double bytes, double fused) { return {.kind = kind, .bytes = bytes, .fused_bytes = fused}; }
// Fused into an adjacent kernel in the ideal graph.
OpCost apart(double bytes) { return moves(OpClass::kElementwise, bytes, 0); }

template <class Args>
OpCost product(const Args& g, double inner, double bytes) {
  OpCost c = moves(OpClass::kGemm, bytes);
  c.flops = c.model_flops = 2 * static_cast<double>(g.out.numel()) * inner;
  return c;
}

// Bytes of `rows` rows like those of x.
double grouped_bytes(const Tensor& x, int64_t rows) {
  return static_cast<double>(rows * x.shape.cols() * size_of(x.dtype));
}

// Twice the pairs of queries at 0 .. queries - 1 and keys at 0 .. keys - 1 with key <= query + ahead, the diagonal
// counted half.
int64_t twice_pairs(int64_t queries, int64_t keys, int64_t ahead) {
  const int64_t begin = std::clamp<int64_t>(-ahead, 0, queries);  // the first query that sees a key
  const int64_t all = std::clamp(keys - ahead, begin, queries);   // the first that sees all
  return (all - begin) * (all + begin + 2 * ahead) + 2 * (queries - all) * keys;
}
// Bidirectional: an upper bound, for lengths are only known on the device.
int64_t twice_pairs(const AttentionSpec& a) {
  if (a.full) return 2 * a.queries * a.keys;
  const int64_t ahead = a.first_query - a.first_key;
  return twice_pairs(a.queries, a.keys, ahead) - (a.window > 0 ? twice_pairs(a.queries, a.keys, ahead - a.window) : 0);
}

// `products`: of Q K^T's size, the causal half of each, or what of that a window leaves. Packed documents, whose
// lengths only the data hold, are counted as one: an upper bound. `tensors`: of the size of the queries, and as many of
// the size of the keys.
OpCost attention_cost(const AttentionSpec& a, double products, double counted, int64_t tensors, const Tensor& out,
                      const Tensor& lse) {
  const int64_t elements = a.batch * a.head_dim * (a.queries * a.heads + a.keys * a.kv_heads);
  OpCost c = moves(OpClass::kAttention, static_cast<double>(tensors * elements * size_of(out.dtype)) + of(lse));
  const double one = static_cast<double>(a.batch * a.heads) * static_cast<double>(twice_pairs(a) * a.head_dim);
  c.flops = products * one;
  c.model_flops = counted * one;
  return c;
}

double value_bytes(const SegmentTable& t) {
  int64_t sum = 0;
  for (const Segment& s : t.segments()) sum += s.value != nullptr ? s.count * size_of(t.value) : 0;
  return static_cast<double>(sum);
}
// Optimizer step over segments: gradients read, masters and moments read and written, values written.
OpCost step_cost(const SegmentTable& t) {
  int64_t sum = t.elements * (size_of(t.grad) + 2 * size_of(t.master));
  for (const Segment& s : t.segments())
    sum += s.count * 2 * size_of(DType::kF32) * ((s.m != nullptr ? 1 : 0) + (s.v != nullptr ? 1 : 0));
  return moves(OpClass::kOptimizer, static_cast<double>(sum) + value_bytes(t));
}

template <class Member>
constexpr int tensors_in = std::is_same_v<Member, Tensor> || std::is_same_v<Member, HeadView> ? 1
                           : std::is_same_v<Member, AttentionSpec>                            ? 2
                           : std::is_same_v<Member, Fp8Out>                                   ? 5
                                                                                              : 0;

}  // namespace

const char* name_of(OpClass c) {
  constexpr const char* kNames[] = {"products", "attention", "loss", "norms", "optimizer", "embedding", "elementwise"};
  return kNames[static_cast<size_t>(c)];
}

#define GT_COST_kOwn(Args)
#define GT_COST_kPart(Args) \
  OpCost op_cost(const Args& a) { return one_pass(a); }
#define GT_COST_kPass(Args) GT_COST_kPart(Args)
#define X(entry, Args, amp, direction, kind, leaf, cost) GT_COST_##cost(Args)
GT_OPS(X)
#undef X

// Detects tensors that an op's operands() omits: they would be missing wherever operands are visited.
template <class Args>
consteval int tensors_left_out() {
  int missing = 0;
  Args args{};
  each_operand(args, [&](const char*, Tensor&, OperandRole) { --missing; });
  std::apply([&](const auto&... member) { ((missing += tensors_in<std::decay_t<decltype(member)>>), ...); },
             fields::of(args));
  return missing;
}
#define X(entry, Args, ...) static_assert(tensors_left_out<Args>() == 0, #entry ": operands() and members differ");
GT_OPS(X)
#undef X

OpCost op_cost(const Gemm& g) {
  const int64_t inner = g.trans_a ? g.a.shape.rows() : g.a.shape.cols();
  const double aux = g.epilogue == Epilogue::kNone ? 0 : of(g.aux);
  return product(g, static_cast<double>(inner),
                 all({g.a, g.b, g.bias}) + aux + result(g.out, g.accumulate) + result(g.dbias, g.accumulate_dbias));
}
OpCost op_cost(const GroupedGemm& g) {
  return product(g, static_cast<double>(g.a.shape.cols()), all({g.b, g.out}) + grouped_bytes(g.a, g.out.shape.rows()));
}
OpCost op_cost(const GroupedGemmGrad& g) {
  OpCost c = moves(OpClass::kGemm, grouped_bytes(g.a, g.slots.numel()) + grouped_bytes(g.b, g.slots.numel()) +
                                       result(g.out, g.accumulate));
  c.flops = c.model_flops = 2.0 * static_cast<double>(g.slots.numel() * g.a.shape.cols() * g.b.shape.cols());
  return c;
}
OpCost op_cost(const GemmFp8& g) {
  OpCost c = product(g, static_cast<double>(g.a.shape.cols()), all({g.a, g.b, g.bias}) + result(g.out, g.accumulate));
  c.fp8 = true;
  return c;
}

OpCost op_cost(const Attention& a) { return attention_cost(a.spec, 2, 2, 2, a.out, a.lse); }
OpCost op_cost(const AttentionGrad& a) { return attention_cost(a.spec, 5, 4, 4, a.out, a.lse); }

OpCost op_cost(const StoreKv& a) {
  const double rows = static_cast<double>(a.positions.numel() * a.keys.shape[1] * a.keys.shape[3]);
  return apart(4 * rows * static_cast<double>(size_of(a.keys.dtype)) + of(a.positions) + of(a.sequences));
}
// Upper bound: every token last in a full cache, since positions are only known on the device.
OpCost op_cost(const CachedAttention& a) {
  const int64_t attended = a.window > 0 ? std::min(a.window, a.keys.shape[2]) : a.keys.shape[2];
  const int64_t n = a.positions.numel(), head = attended * a.keys.shape[3];
  OpCost c =
      moves(OpClass::kAttention, 2 * of(a.out) + all({a.positions, a.sequences}) +
                                     static_cast<double>(2 * n * a.keys.shape[1] * head * size_of(a.keys.dtype)));
  c.flops = c.model_flops = 4 * static_cast<double>(n * a.heads * head);
  return c;
}

OpCost op_cost(const LayerNormGrad& a) {
  const double bytes = all({a.x, a.gamma, a.mean, a.rstd, a.dout, a.dsum, a.ddelta}) + result(a.dx, a.accumulate_dx) +
                       result(a.dgamma, a.accumulate_dw) + result(a.dbeta, a.accumulate_dw) +
                       result(a.dbias, a.accumulate_dbias);
  return moves(OpClass::kNorm, bytes + all({a.fp8.rowwise, a.fp8.columnwise}), bytes);  // as QuantizeFp8
}

OpCost op_cost(const CrossEntropy& a) {
  return moves(OpClass::kLoss, all({a.logits, a.targets, a.loss, a.dlogits, a.hits}));
}
// The two-step form reads logits twice: vocabulary-parallel ranks exchange statistics in between.
OpCost op_cost(const CrossEntropyStats& a) {
  return moves(OpClass::kLoss, all({a.logits, a.targets, a.stats}), all({a.targets}));
}
OpCost op_cost(const CrossEntropyGrad& a) {
  const double bytes = all({a.logits, a.targets, a.stats, a.loss, a.dlogits, a.hits});
  return moves(OpClass::kLoss, bytes, all({a.logits, a.loss, a.dlogits, a.hits}));
}

OpCost op_cost(const Embedding& a) { return moves(OpClass::kEmbedding, 2 * of(a.out) + of(a.tokens)); }
OpCost op_cost(const AddPosition& a) {
  const double rows =
      static_cast<double>(std::min(a.x.shape.rows(), a.rows.seq) * a.pos.shape.cols() * size_of(a.pos.dtype));
  return moves(OpClass::kEmbedding, 2 * of(a.x) + rows, rows);
}
// Upper bound: as many table rows as tokens, i.e. all tokens distinct. Without accumulate the whole table is written.
OpCost op_cost(const EmbeddingGrad& a) {
  const double row = a.dtable.shape[0] > 0 ? of(a.dtable) / static_cast<double>(a.dtable.shape[0]) : 0;
  const double used = row * static_cast<double>(std::min(a.tokens.numel(), a.dtable.shape[0]));
  return moves(OpClass::kEmbedding, of(a.dout) + of(a.tokens) + (a.accumulate ? 2 * used : of(a.dtable)),
               2 * of(a.dout));
}
OpCost op_cost(const PositionGrad& a) {
  return moves(OpClass::kEmbedding, of(a.dout) + result(a.dpos, a.accumulate), result(a.dpos, a.accumulate));
}

OpCost op_cost(const SumSquares& a) { return apart(static_cast<double>(a.table.elements * size_of(a.table.grad))); }
// Rowwise and columnwise FP8 data together take the 16 bits already counted where x is produced, unless it is produced
// here. A pure amax pass is attributed to the producer of x.
OpCost op_cost(const QuantizeFp8& a) {
  const double codes = all({a.x, a.pre, a.fp8.rowwise, a.fp8.columnwise});
  const double bytes = codes + result(a.sums, a.accumulate);
  return moves(OpClass::kElementwise, bytes, a.of == Fp8Source::kPlain || !a.fp8.quantizes() ? 0 : codes);
}
// Table: one row per position.
OpCost op_cost(const Rope& a) {
  const int64_t n = a.x.shape.rows(), positions = a.positions ? n : std::min(n, a.rows.seq);
  const double turned = static_cast<double>(n * a.heads * a.table.shape.cols() * size_of(a.x.dtype));
  const double table = static_cast<double>(positions * a.table.shape.cols() * size_of(DType::kF32));
  return apart(2 * turned + table + of(a.positions));
}

OpCost op_cost(const AmaxHistory& a) { return apart(all({a.step_amax, a.history, a.amax})); }

OpCost op_cost(const AdamW& a) { return step_cost(a.table); }
OpCost op_cost(const Sgd& a) { return step_cost(a.table); }
OpCost op_cost(const Lion& a) { return step_cost(a.table); }
OpCost op_cost(const Adagrad& a) { return step_cost(a.table); }
OpCost op_cost(const LambMoments& a) {
  const SegmentTable& t = a.table;
  return moves(OpClass::kOptimizer,
               static_cast<double>(t.elements * (size_of(t.master) + size_of(t.grad) + 4 * size_of(DType::kF32))));
}
OpCost op_cost(const LambApply& a) {
  const SegmentTable& t = a.table;
  return moves(OpClass::kOptimizer,
               static_cast<double>(t.elements * (2 * size_of(t.master) + 2 * size_of(DType::kF32))) + value_bytes(t));
}
OpCost op_cost(const StochasticRound& a) { return moves(OpClass::kOptimizer, all({a.src, a.dst}), of(a.dst)); }

}  // namespace gt
