// Cases of embedding, positions and cross-entropy.
#include <cmath>
#include <vector>

#include "tests/kernels/cases/op_cases.h"
#include "tests/kernels/reference/reference_ops.h"

namespace gt::test {
namespace {

// A table of `rows` rows that starts at `first`; ids from a vocabulary of 50.
void add_embedding(OpCases& to, int64_t tokens, int64_t rows, int64_t cols, int64_t first, DType t = DType::kF32,
                   bool big = false) {
  const std::string name = cat(tokens, " tokens, rows ", first, "..", first + rows - 1, " of ", cols, suffix(t));
  const int64_t vocab = big ? rows : 50;
  auto& forward = add_case<Embedding>(to, name);
  forward.args.first_row = first;
  forward.in(&Embedding::tokens, "tokens", {tokens}, ids(0, vocab), DType::kI32);
  forward.in(&Embedding::table, "table", {rows, cols}, normal(), t).out(&Embedding::out, "out", {tokens, cols}, t);
  forward.tolerance = 0, forward.big = big;
  if (rows > tokens) forward.untouched = static_cast<double>((rows - tokens) * cols * size_of(t));
  for (const bool accumulate : {false, true}) {
    for (const DType grad : kGradients) {
      auto& backward = add_case<EmbeddingGrad>(to, name + (accumulate ? " accumulate" : "") + grad_suffix(grad));
      backward.args.first_row = first, backward.args.accumulate = accumulate;
      backward.in(&EmbeddingGrad::tokens, "tokens", {tokens}, ids(0, vocab), DType::kI32);
      backward.in(&EmbeddingGrad::dout, "dout", {tokens, cols}, normal(), t);
      backward.result(&EmbeddingGrad::dtable, "dtable", {rows, cols}, accumulate, grad);
      backward.tolerance = unit_of(grad);
      backward.flops = static_cast<double>(tokens * cols), backward.big = big;
    }
  }
}

void add_positions(OpCases& to, int64_t sequences, int64_t seq, int64_t max_seq, int64_t first, int64_t cols,
                   DType t = DType::kF32, bool big = false, int64_t run = INT64_MAX, int64_t gap = 0) {
  const std::string name = cat(sequences, " x ", seq, " positions from ", first, " of [", max_seq, ", ", cols, "]",
                               gap > 0 ? cat(", ", gap, " after ", run) : "", suffix(t));
  const Shape x{sequences * seq, cols}, pos{max_seq, cols};
  auto& forward = add_case<AddPosition>(to, name);
  forward.args.rows = {.seq = seq, .first = first, .run = run, .gap = gap};
  forward.inout(&AddPosition::x, "x", x, normal(), t).in(&AddPosition::pos, "pos", pos, normal(), t);
  forward.flops = static_cast<double>(x.numel()), forward.big = big;
  forward.tolerance = unit_of(t);
  if (seq > 1) {
    auto& part = add_case<AddPosition>(to, name + ", from the middle of a sequence");
    part.args = forward.args, part.args.rows.first_row = seq / 2, part.tolerance = unit_of(t), part.big = big;
    part.inout(&AddPosition::x, "x", x, normal(), t).in(&AddPosition::pos, "pos", pos, normal(), t);
  }
  if (t != DType::kF32) {
    auto& beside = add_case<AddPosition>(to, name + ", positions f32");
    beside.args = forward.args, beside.tolerance = unit_of(t), beside.big = big;
    beside.inout(&AddPosition::x, "x", x, normal(), t).in(&AddPosition::pos, "pos", pos);
  }
  for (const bool accumulate : {false, true}) {
    for (const DType grad : kGradients) {
      auto& backward = add_case<PositionGrad>(to, name + (accumulate ? " accumulate" : "") + grad_suffix(grad));
      backward.args.rows = forward.args.rows, backward.args.accumulate = accumulate;
      backward.in(&PositionGrad::dout, "dout", x, normal(), t);
      backward.result(&PositionGrad::dpos, "dpos", pos, accumulate, grad).tolerance = unit_of(grad);
      backward.flops = forward.flops, backward.big = big;
    }
  }
}

struct Logits {
  int64_t rows, cols;        // of this rank
  int64_t first_col, vocab;  // first column of this rank; real columns of all ranks
  int64_t parts = 1;         // ranks that share the vocabulary, `cols` columns each
  double scale = 3;
  float softcap = 0, z_loss = 0;
};

std::string describe(const Logits& l, DType t) {
  return cat("[", l.rows, ", ", l.cols, "] from ", l.first_col, " of ", l.vocab, " in ", l.parts, " parts",
             l.scale > 3 ? " large" : "", l.softcap > 0 ? cat(" softcap ", l.softcap) : "",
             l.z_loss > 0 ? cat(" z-loss ", l.z_loss) : "", suffix(t));
}

void add_cross_entropy_stats(OpCases& to, const Logits& l, DType t = DType::kF32, bool big = false) {
  using S = CrossEntropyStats;
  auto& c = add_case<S>(to, describe(l, t));
  c.args.first_col = l.first_col, c.args.vocab = l.vocab, c.args.softcap = l.softcap;
  c.in(&S::logits, "logits", {l.rows, l.cols}, normal(l.scale), t);
  c.in(&S::targets, "targets", {l.rows}, ids(-1, l.vocab), DType::kI32).out(&S::stats, "stats", {l.rows, 3});
  c.non_finite = l.first_col >= l.vocab;  // a rank with padding columns only
  c.flops = 4.0 * static_cast<double>(l.rows * l.cols), c.big = big;
}

// Statistics of every part: this rank's from its own logits, the others' from generated logits.
void derive_stats(const CrossEntropyGrad& g) {
  const int64_t rows = g.logits.shape.rows(), cols = g.logits.shape.cols();
  for (int64_t part = 0; part < g.parts; ++part) {
    std::vector<float> drawn(static_cast<size_t>(g.logits.numel()));
    Tensor logits{reinterpret_cast<std::byte*>(drawn.data()), g.logits.shape, DType::kF32, {}};
    normal(3)(logits, 1000 + static_cast<uint64_t>(part));
    if (part * cols == g.first_col) logits = g.logits;
    reference::cross_entropy_stats(
        {logits, g.targets, g.stats.slice(part, 1).view({rows, 3}), part * cols, g.vocab, g.softcap}, {});
  }
}

enum class Dlogits { kSeparate, kOntoLogits, kNone };

void add_cross_entropy_grad(OpCases& to, const Logits& l, Dlogits d, DType t = DType::kF32, bool big = false) {
  using G = CrossEntropyGrad;
  const char* names[] = {"", ", dlogits is logits", ", loss alone"};
  auto& c = add_case<G>(to, describe(l, t) + names[static_cast<int>(d)]);
  c.args.parts = l.parts, c.args.first_col = l.first_col, c.args.vocab = l.vocab, c.args.softcap = l.softcap;
  c.args.z_loss = l.z_loss;
  const Shape s{l.rows, l.cols};
  if (d == Dlogits::kOntoLogits) {
    c.inout(&G::logits, "logits", s, normal(l.scale), t).alias(&G::dlogits, &G::logits);
  } else {
    c.in(&G::logits, "logits", s, normal(l.scale), t);
    if (d == Dlogits::kSeparate) c.out(&G::dlogits, "dlogits", s, t);
  }
  c.in(&G::targets, "targets", {l.rows}, ids(-1, l.vocab), DType::kI32);
  c.in(&G::stats, "stats", {l.parts, l.rows, 3}, positive());
  c.in(&G::seed, "seed", {1}, values({0.37})).out(&G::loss, "loss", {l.rows});
  if (d == Dlogits::kNone) c.out(&G::hits, "hits", {l.rows});
  c.derive = derive_stats;
  c.tolerance = unit_of(t);
  c.flops = 4.0 * static_cast<double>(l.rows * l.cols), c.big = big;
}

// The whole vocabulary in one pass. `big` or not, padded or not; `skew`: addresses not multiples of 16 bytes.
void add_whole_cross_entropy(OpCases& to, const Logits& l, Dlogits d, DType t = DType::kF32, bool big = false,
                             int skew = 0) {
  using W = CrossEntropy;
  const char* names[] = {"", ", dlogits is logits", ", loss alone"};
  auto& c = add_case<W>(to, describe(l, t) + names[static_cast<int>(d)] + (skew > 0 ? ", skewed" : ""));
  c.args.vocab = l.vocab, c.args.softcap = l.softcap, c.args.z_loss = l.z_loss;
  const Shape s{l.rows, l.cols};
  if (d == Dlogits::kOntoLogits) {
    c.inout(&W::logits, "logits", s, normal(l.scale), t).alias(&W::dlogits, &W::logits);
  } else {
    c.in(&W::logits, "logits", s, normal(l.scale), t);
    if (d == Dlogits::kSeparate) c.out(&W::dlogits, "dlogits", s, t);
  }
  c.in(&W::targets, "targets", {l.rows}, ids(-1, l.vocab), DType::kI32);
  c.in(&W::seed, "seed", {1}, values({0.37})).out(&W::loss, "loss", {l.rows});
  if (d != Dlogits::kOntoLogits) c.out(&W::hits, "hits", {l.rows});
  c.tolerance = unit_of(t), c.skew = skew;
  c.flops = 4.0 * static_cast<double>(l.rows * l.cols), c.big = big;
}

// A 16-bit row of 50304 logits fits in shared memory per block on sm_89 and sm_90, an f32 one on sm_90 only. A row of
// the last length fits on neither, so part of it is read twice.
void add_whole_cross_entropies(OpCases& to) {
  for (const DType t : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Logits& l : {Logits{1, 7, 0, 7},
                            {5, 33, 0, 33},
                            {9, 64, 0, 50},
                            {9, 4096, 0, 4090},
                            {130, 300, 0, 300},
                            {3, 8192, 0, 8120},
                            {0, 33, 0, 33}})
      for (const Dlogits d : {Dlogits::kSeparate, Dlogits::kOntoLogits, Dlogits::kNone})
        add_whole_cross_entropy(to, l, d, t);
    add_whole_cross_entropy(to, {5, 136, 0, 131}, Dlogits::kOntoLogits, t, false, 1);
    add_whole_cross_entropy(to, {3, 50304, 0, 50257}, Dlogits::kOntoLogits, t);
    add_whole_cross_entropy(to, {3, 131072, 0, 130993}, Dlogits::kOntoLogits, t);
    add_whole_cross_entropy(to, {2, 131072, 0, 130993}, Dlogits::kNone, t);
  }
  add_whole_cross_entropy(to, {5, 40, 0, 40, 1, 60}, Dlogits::kOntoLogits);  // large: exp would overflow
  add_whole_cross_entropy(to, {512, 50304, 0, 50257}, Dlogits::kOntoLogits, DType::kF32, true);
  for (const int64_t vocab : {32000, 50257, 128256})
    add_whole_cross_entropy(to, {512, (vocab + 127) / 128 * 128, 0, vocab}, Dlogits::kOntoLogits, DType::kBF16, true);
}

// Logits far above the cap and below it.
void add_capped_cross_entropies(OpCases& to) {
  for (const DType t : {DType::kF32, DType::kBF16, DType::kF16})
    for (const Dlogits d : {Dlogits::kSeparate, Dlogits::kOntoLogits, Dlogits::kNone}) {
      add_whole_cross_entropy(to, {5, 33, 0, 33, 1, 3, 2}, d, t);
      add_whole_cross_entropy(to, {9, 64, 0, 50, 1, 20, 30}, d, t);
      add_whole_cross_entropy(to, {3, 131072, 0, 130993, 1, 3, 30}, d, t);
      add_cross_entropy_grad(to, {7, 33, 33, 65, 2, 3, 2}, d, t);
      add_cross_entropy_grad(to, {6, 16, 48, 50, 4, 3, 4}, d, t);
    }
  for (const DType t : {DType::kF32, DType::kBF16, DType::kF16}) {
    add_whole_cross_entropy(to, {5, 136, 0, 131, 1, 3, 2}, Dlogits::kOntoLogits, t, false, 1);
    add_cross_entropy_stats(to, {7, 33, 33, 65, 2, 3, 2}, t);
    add_cross_entropy_stats(to, {9, 64, 0, 50, 1, 20, 30}, t);
  }
  add_whole_cross_entropy(to, {512, 256000, 0, 256000, 1, 3, 30}, Dlogits::kOntoLogits, DType::kBF16, true);
}

void add_z_losses(OpCases& to) {
  for (const DType t : {DType::kF32, DType::kBF16, DType::kF16})
    for (const Dlogits d : {Dlogits::kSeparate, Dlogits::kOntoLogits, Dlogits::kNone}) {
      add_whole_cross_entropy(to, {5, 33, 0, 33, 1, 3, 0, 0.02f}, d, t);
      add_whole_cross_entropy(to, {9, 64, 0, 50, 1, 3, 2, 0.1f}, d, t);
      add_cross_entropy_grad(to, {7, 33, 33, 65, 2, 3, 0, 0.02f}, d, t);
      add_cross_entropy_grad(to, {6, 16, 48, 50, 4, 3, 4, 0.1f}, d, t);
    }
}

void add_cross_entropy(OpCases& to) {
  add_whole_cross_entropies(to);
  add_capped_cross_entropies(to);
  add_z_losses(to);
  const Logits shapes[] = {
      {1, 7, 0, 7},       {5, 33, 0, 33},     {9, 129, 0, 129},      {9, 64, 0, 50},      // alone; with padding
      {7, 33, 0, 65, 2},  {7, 33, 33, 65, 2}, {6, 16, 32, 50, 4},    {6, 16, 48, 50, 4},  // several parts, padded
      {6, 16, 16, 17, 4}, {130, 300, 0, 300}, {5, 33, 0, 33, 1, 60},                      // large: exp would overflow
      {0, 33, 0, 33},
  };
  for (const Logits& l : shapes) {
    add_cross_entropy_stats(to, l);
    for (const Dlogits d : {Dlogits::kSeparate, Dlogits::kOntoLogits, Dlogits::kNone}) add_cross_entropy_grad(to, l, d);
  }
  const Logits padding_alone{5, 16, 32, 20, 3};
  add_cross_entropy_stats(to, padding_alone);
  for (const DType t : k16BitDtypes) {
    for (const Logits& l : {Logits{1, 7, 0, 7},
                            {9, 64, 0, 50},
                            {7, 33, 33, 65, 2},
                            {6, 16, 48, 50, 4},
                            {130, 300, 0, 300},
                            {0, 33, 0, 33}}) {
      add_cross_entropy_stats(to, l, t);
      for (const Dlogits d : {Dlogits::kSeparate, Dlogits::kOntoLogits, Dlogits::kNone})
        add_cross_entropy_grad(to, l, d, t);
    }
    add_cross_entropy_stats(to, padding_alone, t);
  }
  add_cross_entropy_stats(to, {512, 50304, 0, 50257}, DType::kF32, true);
  add_cross_entropy_grad(to, {512, 50304, 0, 50257}, Dlogits::kSeparate, DType::kF32, true);
  add_cross_entropy_stats(to, {512, 50304, 0, 50257}, DType::kBF16, true);
  add_cross_entropy_grad(to, {512, 50304, 0, 50257}, Dlogits::kOntoLogits, DType::kBF16, true);
}

}  // namespace

void add_model_cases(OpCases& to) {
  add_embedding(to, 1, 50, 1, 0);
  add_embedding(to, 129, 50, 33, 0);
  add_embedding(to, 67, 17, 7, 20);  // most ids are out of range
  add_embedding(to, 67, 17, 64, 33);
  add_embedding(to, 40, 5, 8, 100);  // all of them do
  add_embedding(to, 0, 17, 33, 0);
  add_positions(to, 1, 1, 1, 0, 1);
  add_positions(to, 3, 7, 16, 0, 33);
  add_positions(to, 3, 5, 16, 6, 129);
  add_positions(to, 2, 64, 64, 0, 64);
  add_positions(to, 3, 6, 20, 4, 33, DType::kF32, false, 2, 7);
  add_positions(to, 2, 8, 16, 0, 64, DType::kBF16, false, 3, 5);
  for (const DType t : k16BitDtypes) {
    add_embedding(to, 129, 50, 33, 0, t);
    add_embedding(to, 67, 17, 64, 20, t);
    add_embedding(to, 40, 5, 1100, 10, t);
    add_embedding(to, 0, 17, 33, 0, t);
    add_positions(to, 3, 7, 16, 4, 64, t);
    add_positions(to, 3, 5, 16, 6, 129, t);
    add_positions(to, 37, 2, 2, 0, 1100, t);
  }
  add_cross_entropy(to);
  add_embedding(to, 4096, 50257, 768, 0, DType::kF32, true);
  add_positions(to, 8, 1024, 1024, 0, 768, DType::kF32, true);
}

}  // namespace gt::test
