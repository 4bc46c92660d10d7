// Typing rules of all ops, one line each. An op without a rule does not compile.
//
// A rule names the dimensions of the operands by letters, as Einstein sums do: "a:mk b:nk > out:mn=a*b". Operands
// before ">" are read, those behind it written. A lower-case letter may be split over ranks, equally in all operands
// that have it; an upper-case letter must be whole on every rank, and so must "_", a dimension that others lack. "s":
// rows of tokens that may be split into whole sequences only. "e": experts, which are split where the rows "t" are
// those of each rank's experts, and nowhere else. ".": any shape, element by element.
//
// "=a*b+c": the result is a sum of products, linear in each factor: partial sums of one factor of every term give
// partial sums, and so does a letter of every term that is split and not in the result. Operands that are not in these
// terms must not be partial sums. "#": no such terms, but the result is a sum over letters that it lacks. "!v": it is
// equal on all ranks although v is split.
#pragma once
#include <string_view>

#include "kernels/ops.h"

namespace gt::proof {

// Kinds of ops without letters. kTables: reads and writes segments (kernels/core/segments.h). kScalars: reads and
// writes scalars of a step and statistics of quantizers, which are equal on the ranks that share them.
constexpr std::string_view kTables = "tables", kScalars = "scalars";

constexpr std::string_view rule_of(const Gemm& g) {
  const bool gelu = g.epilogue == Epilogue::kGelu, grad = g.epilogue == Epilogue::kGeluGrad;
  if (g.trans_a) return g.trans_b ? "a:km b:nk > out:mn=a*b" : "a:km b:kn > out:mn=a*b dbias:m=a";
  if (gelu) return g.trans_b ? "a:mk b:nk bias:n > out:mn aux:mn" : "a:mk b:kn bias:n > out:mn aux:mn";
  if (grad)
    return g.trans_b ? "a:mk b:nk aux:mn > out:mn=a*b dbias:n=a*b" : "a:mk b:kn aux:mn > out:mn=a*b dbias:n=a*b";
  return g.trans_b ? "a:mk b:nk bias:n > out:mn=a*b+bias" : "a:mk b:kn bias:n > out:mn=a*b+bias";
}

constexpr std::string_view rule_of(const GroupedGemm& g) {
  return g.trans_b ? "a:tk b:enk > out:tn=a*b" : "a:tk b:ekn > out:tn=a*b";
}

#define GT_OP_RULES(X)                                                                                               \
  X(Add, "a:. b:. > out:.=a+b")                                                                                      \
  X(Axpy, "x:. > y:.=x")                                                                                             \
  X(Scale, "x:. > out:.=x")                                                                                          \
  X(SoftCap, "x:. > out:.")                                                                                          \
  X(Copy, "src:. > dst:.=src")                                                                                       \
  X(AddBias, "x:tc bias:c > out:tc=x+bias")                                                                          \
  X(ColumnSums, "x:tc > out:c=x")                                                                                    \
  X(Cast, "src:. > dst:.=src")                                                                                       \
  X(Gelu, "x:. > out:.")                                                                                             \
  X(GeluGrad, "x:. dout:. > dx:.=dout")                                                                              \
  X(Activate, "x:tf > out:tf")                                                                                       \
  X(ActivateGrad, "x:tf dout:tf > dx:tf=dout")                                                                       \
  X(Dropout, "x:. > out:.=x")                                                                                        \
  X(LayerNorm, "x:tC delta:tC gamma:C beta:C > sum:tC=x+delta out:tC mean:t rstd:t rowwise:tC columnwise:Ct")        \
  X(LayerNormGrad,                                                                                                   \
    "x:tC mean:t rstd:t dout:tC dsum:tC gamma:C > dx:tC=dout+dsum dgamma:C=dout dbeta:C=dout "                       \
    "ddelta:tC=dout+dsum dbias:C=dout+dsum rowwise:tC columnwise:Ct")                                                \
  X(QkNorm, "qkv:th q_gamma:D k_gamma:D > out:th rstd:th")                                                           \
  X(QkNormGrad, "qkv:th rstd:th dout:th q_gamma:D k_gamma:D > dqkv:th=dout dq_gamma:D=dout dk_gamma:D=dout")         \
  X(QkRowSums, "qkv:th gamma:h dout:th > sums:t#")                                                                   \
  X(QkRowNorm, "qkv:th gamma:h sums:t > out:th")                                                                     \
  X(QkRowNormGrad, "qkv:th gamma:h sums:t dsums:t dout:th > dqkv:th=dout+dsums dgamma:h=dout")                       \
  X(Rope, "x:th > x:th=x")                                                                                           \
  X(Attention, "q:sh k:sh v:sh lengths:s documents:s > out:sh lse:sh_")                                              \
  X(AttentionGrad, "q:sh k:sh v:sh out:sh lse:sh_ dout:sh lengths:s documents:s > dq:sh=dout dk:sh=dout dv:sh=dout") \
  X(StoreKv, "k:th v:th > keys:_h__ values:_h__")                                                                    \
  X(CachedAttention, "q:th keys:_h__ values:_h__ > out:th")                                                          \
  X(Embedding, "tokens:t table:vc > out:tc=table")                                                                   \
  X(EmbeddingGrad, "tokens:t dout:tc > dtable:vc=dout")                                                              \
  X(AddPosition, "x:tc pos:Pc > x:tc=x+pos")                                                                         \
  X(PositionGrad, "dout:tc > dpos:Pc=dout")                                                                          \
  X(CrossEntropy, "logits:tV targets:t seed:_ > loss:t dlogits:tV hits:t")                                           \
  X(CrossEntropyStats, "logits:tv targets:t > stats:vt_")                                                            \
  X(CrossEntropyGrad, "logits:tv targets:t stats:Vt_ seed:_ > loss:t!v dlogits:tv hits:t!v")                         \
  X(Sum, "x:t > out:_=x")                                                                                            \
  X(SumSquares, kTables)                                                                                             \
  X(Normalize, "x:. squares:_ > out:.")                                                                              \
  X(ClipFactor, kScalars)                                                                                            \
  X(CheckStep, kScalars)                                                                                             \
  X(AdamW, kTables)                                                                                                  \
  X(Sgd, kTables)                                                                                                    \
  X(Lion, kTables)                                                                                                   \
  X(LambMoments, kTables)                                                                                            \
  X(LambApply, kTables)                                                                                              \
  X(Adagrad, kTables)                                                                                                \
  X(StochasticRound, "src:. > dst:.")                                                                                \
  X(FakeQuant, "x:. > out:.")                                                                                        \
  X(FakeQuantGrad, "x:. dout:. > dx:.=dout")                                                                         \
  X(MaxAbs, kScalars)                                                                                                \
  X(QuantizeInt8, "x:. > out:.")                                                                                     \
  X(DequantizeInt8, "x:. > out:.")                                                                                   \
  X(QuantizeFp8, "x:tc pre:tc > sums:c=x rowwise:tc columnwise:ct")                                                  \
  X(GemmFp8, "a:mk b:nk bias:n > out:mn=a*b+bias")                                                                   \
  X(AmaxHistory, kScalars)                                                                                           \
  X(Route, "logits:tE bias:E > experts:t_ weights:t_ counts:E#")                                                     \
  X(RouteGrad, "logits:tE experts:t_ dweights:t_ > dlogits:tE=dweights")                                             \
  X(BalanceLoss, "logits:sE experts:s_ seed:_ > loss:s dlogits:sE")                                                  \
  X(GroupRows, "experts:t_ > slots:t rows:t_")                                                                       \
  X(SendRows, "experts:t_ > slots:t rows:t_ copies:t parts:t_ counts:t_")                                            \
  X(ReceiveRows, "parts:t_ counts:r_ > slots:t!r tokens:t!r rows:t_!r")                                              \
  X(GroupedGemmGrad, "a:tm b:tn > out:emn=a*b")                                                                      \
  X(ExpertActivate, "x:tf weights:t_ > out:tf")                                                                      \
  X(ExpertActivateGrad, "x:tf weights:t_ dout:tf > dx:tf=dout dweights:t_=dout")                                     \
  X(CombineRows, "x:tc > out:tc=x")

#define X(Args, rule) \
  constexpr std::string_view rule_of(const Args&) { return rule; }
GT_OP_RULES(X)
#undef X

// Every op of the table has a rule: overload resolution fails without one.
#define X(entry, Args, ...) static_assert(!rule_of(Args{}).empty());
GT_OPS(X)
#undef X

}  // namespace gt::proof
