#include "parallel/tensor/expert_exchange.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "parallel/proof/claim.h"

namespace gt::ops {
namespace {

using Plan = ExpertInputs::Plan;

void exchange(const Plan& p, const Tensor& from, const Tensor& to, const PeerCounts& counts, Stream s) {
  proof::fresh(to);
  p.group->all_to_all(from, to, counts, s).wait(s);
}

// Slots that each rank has for this one: of n tokens with k choices, the most, or a multiple of the mean.
int64_t most_slots(const ExpertAxis& a, int64_t n, int64_t k) {
  const int64_t p = a.group.size(), most = n * std::min(k, a.experts / p);
  return a.load > 0 ? std::min(most, static_cast<int64_t>(std::ceil(a.load * static_cast<double>(n * k) / p))) : most;
}

// Counts if so many slots of each rank are for this one, and its others for as few ranks as can be.
void assume_counts(int64_t* counts, const ExpertAxis& a, int64_t n, int64_t k) {
  const int64_t p = a.group.size(), most = most_slots(a, n, k), tokens = std::min(n, most);
  int64_t copies = n * (std::min(k, p) - 1), slots = n * k - most;
  for (int64_t r = 0; r < p; ++r) {
    const bool me = r == a.group.rank();
    counts[r] = me ? tokens : std::min(tokens, copies), counts[p + r] = tokens;
    counts[2 * p + r] = me ? most : std::min(most, slots), counts[3 * p + r] = most;
    if (!me) copies -= counts[r], slots -= counts[2 * p + r];
  }
}

// How many copies and slots go to each rank and come from it: an all-to-all of their numbers, which the host reads.
void exchange_counts(Tape& t, Plan& p, const Tensor& mine, const Tensor& theirs, const ExpertAxis& a, int64_t n,
                     int64_t k) {
  const int64_t ranks = a.group.size();
  exchange(p, mine, theirs, {}, t.stream());
  int64_t* counts = t.host_numbers(6 * ranks);
  auto* read = reinterpret_cast<int32_t*>(counts + 4 * ranks);  // [2, p, 2]
  assume_counts(counts, a, n, k);
  for (int64_t r = 0; r < ranks; ++r)
    for (int64_t way = 0; way < 2; ++way)
      for (int64_t what = 0; what < 2; ++what)
        read[(way * ranks + r) * 2 + what] = static_cast<int32_t>(counts[(2 * what + way) * ranks + r]);
  a.device->copy(read, mine.data, mine.bytes(), t.stream());  // a device without memory leaves what is assumed
  a.device->copy(read + 2 * ranks, theirs.data, theirs.bytes(), t.stream());
  a.device->synchronize(t.stream());
  for (int64_t r = 0; r < ranks; ++r)
    for (int64_t way = 0; way < 2; ++way)
      for (int64_t what = 0; what < 2; ++what)
        counts[(2 * what + way) * ranks + r] = read[(way * ranks + r) * 2 + what];
  p.counts = counts;
  const auto sum = [&](int64_t i) { return std::reduce(counts + i * ranks, counts + (i + 1) * ranks); };
  p.sent = sum(0), p.got = sum(1), p.own = sum(2), p.taken = sum(3);
}

// to[i] = from[rows[i]].
void take(const OpTable& f, const Tensor& from, const Tensor& rows, const Tensor& to, Stream s) {
  f.combine_rows({.x = from, .rows = rows.view({rows.numel(), 1}), .out = to}, s);
}

struct Sent {
  Var x, weights, tokens, of_slots;
  Plan plan;
};

// Gradients of slots return to the rank of their tokens, which adds those of each token in their order.
void return_gradients(const Sent& s, Backprop& bp) {
  const Plan& p = s.plan;
  const auto back = [&](const Var& theirs, const Tensor& like) {
    const Tensor own = bp.scratch({p.own, like.shape.cols()}, like.dtype);
    exchange(p, bp.grad(theirs), own, p.slots_back(like.shape.cols()), bp.stream());
    return own;
  };
  const Tensor dslots = back(s.tokens, s.x.value);
  if (bp.needs_grad(s.x)) {
    const auto [dx, accumulate] = bp.dst(s.x);
    bp.ops().combine_rows({.x = dslots, .rows = p.rows, .out = dx, .accumulate = accumulate}, bp.stream());
  }
  bp.free(dslots);
  const Tensor dweights = back(s.of_slots, s.of_slots.value);
  const GradDst to = bp.dst(s.weights);
  GT_CHECK(!to.accumulate, "the weights of experts feed one exchange");
  take(bp.ops(), dweights, p.rows, to.tensor.view({p.own, 1}), bp.stream());
  bp.free(dweights);
}

}  // namespace

ExpertInputs send_to_experts(Tape& t, Var x, const Routing& r, const ExpertAxis& a) {
  if (a.group.size() == 1) return {x, r, {}};
  const int64_t n = x.value.shape.rows(), k = r.experts.shape.cols(), ranks = a.group.size();
  constexpr DType kI = DType::kI32;
  ExpertInputs in;
  Plan& p = in.plan;
  p.group = &a.group;
  p.slots = t.scratch({n * k}, kI), p.rows = t.scratch({n, k}, kI);
  p.copies = t.scratch({n * std::min(k, ranks)}, kI);
  in.routing.gate = r.gate;
  const Tensor parts = t.scratch({n * k, 2}, kI), mine = t.scratch({ranks, 2}, kI), theirs = t.scratch({ranks, 2}, kI);
  t.ops().send_rows({.experts = r.experts,
                     .slots = p.slots,
                     .rows = p.rows,
                     .copies = p.copies,
                     .parts = parts,
                     .counts = mine,
                     .count = a.experts},
                    t.stream());
  exchange_counts(t, p, mine, theirs, a, n, k);

  // What the backward reads first, what only this exchange reads behind it.
  in.tokens = t.output({p.got, x.value.shape.cols()}, x.value.dtype);
  in.routing.weights = t.output({p.taken, 1}, DType::kF32);
  in.routing.bound = ranks * most_slots(a, n, k);
  t.bound(in.tokens, in.routing.bound), t.bound(in.routing.weights, in.routing.bound);
  in.routing.slots = t.scratch({p.taken}, kI), in.routing.tokens = t.scratch({p.taken}, kI);
  in.routing.rows = t.scratch({p.taken, 1}, kI), in.routing.offsets = t.scratch({a.experts / ranks + 1}, kI);
  const Arena::Mark mark = t.activations().mark();
  const Tensor got = t.scratch({p.taken, 2}, kI);
  exchange(p, parts, got, p.slots_out(2), t.stream());
  t.ops().receive_rows({.parts = got,
                        .counts = theirs,
                        .slots = in.routing.slots,
                        .tokens = in.routing.tokens,
                        .rows = in.routing.rows,
                        .offsets = in.routing.offsets},
                       t.stream());
  const Tensor weights = t.scratch({p.own, 1}, DType::kF32),
               copies = t.scratch({p.sent, x.value.shape.cols()}, x.value.dtype);
  take(t.ops(), r.weights.value.view({p.own, 1}), p.slots, weights, t.stream());
  exchange(p, weights, in.routing.weights.value, p.slots_out(1), t.stream());
  take(t.ops(), x.value, p.copies.slice(0, p.sent), copies, t.stream());
  exchange(p, copies, in.tokens.value, p.copies_out(x.value.shape.cols()), t.stream());
  t.activations().rollback(mark);
  t.record(Sent{x, r.weights, in.tokens, in.routing.weights, p}, return_gradients);
  return in;
}

Var return_to_tokens(Tape& t, const ExpertInputs& in, Var y, Output where) {
  if (in.plan.group == nullptr) return y;
  const Plan& p = in.plan;
  const int64_t width = y.value.shape.cols();
  const Shape shape{p.rows.shape[0], width};
  const Var out = where == Output::kTransient ? t.transient(shape, y.value.dtype) : t.output(shape, y.value.dtype);
  const Arena::Mark mark = t.activations().mark();
  const Tensor own = t.scratch({p.own, width}, y.value.dtype);
  exchange(p, y.value, own, p.slots_back(width), t.stream());
  t.ops().combine_rows({.x = own, .rows = p.rows, .out = out.value}, t.stream());
  t.activations().rollback(mark);
  t.discard(y);
  struct Saved {
    Var y, out;
    Plan plan;
  };
  t.record(Saved{y, out, p}, [](const Saved& s, Backprop& bp) {
    const Tensor dout = bp.grad(s.out);
    const int64_t columns = dout.shape.cols();
    const Tensor copies = bp.scratch({s.plan.sent, columns}, dout.dtype, s.plan.copies.numel());
    take(bp.ops(), dout, s.plan.copies.slice(0, s.plan.sent), copies, bp.stream());
    Var tokens = s.y;
    tokens.value.shape = {s.plan.got, columns};
    exchange(s.plan, copies, bp.dst(tokens).tensor, s.plan.copies_out(columns), bp.stream());
    bp.free(copies);
  });
  return out;
}

}  // namespace gt::ops
