#include "parallel/tensor/collective_ops.h"

#include <algorithm>

#include "parallel/proof/claim.h"

namespace gt::ops {

Var copy_to_group(Tape& t, Var x, ProcessGroup& g) {
  if (g.size() == 1) return x;
  Var y = t.view_of(x);
  struct Saved {
    Var x, y;
    ProcessGroup* g;
  };
  t.record(Saved{x, y, &g}, [](const Saved& s, Backprop& bp) {
    if (!bp.needs_grad(s.x)) return;
    const Tensor dy = bp.grad(s.y);
    const bool in_place = bp.sole_owner(s.y);  // a gradient that other slots or the caller share is summed in a copy
    const Tensor sum = in_place ? dy : bp.scratch(dy.shape, dy.dtype);
    if (!in_place) bp.ops().copy({.src = dy, .dst = sum}, bp.stream());
    s.g->all_reduce(sum, ReduceOp::kSum, bp.stream()).wait(bp.stream());
    bp.forward_grad(s.x, sum);
    if (!in_place) bp.free(sum);
  });
  return y;
}

Var reduce_from_group(Tape& t, Var x, ProcessGroup& g) {
  if (g.size() == 1) return x;
  g.all_reduce(x.value, ReduceOp::kSum, t.stream()).wait(t.stream());  // in place: no rule has saved the partial sum
  Var y = t.output_of(x.value);
  t.forward_request(y, x);
  struct Saved {
    Var x, y;
  };
  t.record(Saved{x, y}, [](const Saved& s, Backprop& bp) { bp.forward_grad(s.x, bp.grad(s.y)); });
  return y;
}

Var gather_rows(Tape& t, Var x, ProcessGroup& g) {
  if (g.size() == 1) return x;
  Var all = t.transient({x.value.shape.rows() * g.size(), x.value.shape.cols()}, x.value.dtype);
  g.all_gather(x.value, all.value, t.stream()).wait(t.stream());
  struct Saved {
    Var x, all;
    ProcessGroup* g;
  };
  t.record(
      Saved{x, all, &g},
      [](const Saved& s, Backprop& bp) {
        if (!bp.needs_grad(s.x)) return;
        auto [dx, accumulate] = bp.dst(s.x);
        const Tensor sum = accumulate ? bp.scratch(dx.shape, dx.dtype) : dx;
        s.g->reduce_scatter(bp.grad(s.all), sum, bp.stream()).wait(bp.stream());
        if (!accumulate) return;
        bp.ops().axpy({.x = sum, .y = dx}, bp.stream());
        bp.free(sum);
      },
      [](const Saved& s, Backprop& bp) { bp.release(s.all); });
  return all;
}

// A weight rule: only weight gradients read `all` again, and zero-bubble schedules defer them.
void regather_rows(Tape& t, Var x, Var all, ProcessGroup& g) {
  if (g.size() == 1) return;
  t.discard(all);
  struct Saved {
    Var x, all;
    ProcessGroup* g;
  };
  t.record(Saved{x, all, &g}, nullptr, [](const Saved& s, Backprop& bp) {
    s.g->all_gather(bp.value(s.x), bp.rebuild(s.all), bp.stream()).wait(bp.stream());
  });
}

Var scatter_rows(Tape& t, Var partial, ProcessGroup& g) {
  if (g.size() == 1) return partial;
  const int64_t n = partial.value.shape.rows();
  GT_CHECK(n % g.size() == 0, n, " rows over ", g.size(), " ranks");
  Var y = t.output({n / g.size(), partial.value.shape.cols()}, partial.value.dtype);
  g.reduce_scatter(partial.value, y.value, t.stream()).wait(t.stream());
  t.discard(partial);
  struct Saved {
    Var partial, y;
    ProcessGroup* g;
  };
  t.record(Saved{partial, y, &g}, [](const Saved& s, Backprop& bp) {
    const GradDst d = bp.dst(s.partial);
    GT_CHECK(!d.accumulate, "a partial sum feeds its reduction alone");
    s.g->all_gather(bp.grad(s.y), d.tensor, bp.stream()).wait(bp.stream());
  });
  return y;
}

namespace {
struct QkRowSaved {
  Var qkv, y;
  Tensor sums;
  Parameter* gamma;
  AttentionShape shape;
  float eps;
  ProcessGroup* group;
};

void sum_of_ranks(Tensor sums, ProcessGroup& g, Stream s) {
  if (g.size() > 1) g.all_reduce(sums, ReduceOp::kSum, s).wait(s);
}

QkRowNormGrad arguments(const QkRowSaved& s, Backprop& bp, bool weights) {
  QkRowNormGrad args{.qkv = bp.value(s.qkv),
                     .gamma = s.gamma->value,
                     .sums = s.sums,
                     .dout = bp.grad(s.y),
                     .heads = s.shape.heads,
                     .kv_heads = s.shape.kv_heads,
                     .head_dim = s.shape.head_dim,
                     .ranks = s.group->size(),
                     .eps = s.eps};
  if (!weights || s.gamma->frozen) return args;
  const GradDst d = bp.dst(*s.gamma);
  args.dgamma = d.tensor, args.accumulate_dw = d.accumulate;
  return args;
}

void qk_row_backward(const QkRowSaved& s, Backprop& bp) {
  QkRowNormGrad args = arguments(s, bp, bp.pass() == Pass::kFull);
  // dout has no other reader after this node unless weight gradients are deferred.
  const bool in_place = bp.sole_owner(s.y) && bp.pass() == Pass::kFull;
  args.dsums = bp.scratch(s.sums.shape, DType::kF32);
  args.dqkv = in_place ? args.dout : bp.scratch(args.dout.shape, args.dout.dtype);
  bp.ops().qk_row_sums({.qkv = args.qkv,
                        .gamma = args.gamma,
                        .dout = args.dout,
                        .sums = args.dsums,
                        .heads = args.heads,
                        .kv_heads = args.kv_heads,
                        .head_dim = args.head_dim},
                       bp.stream());
  sum_of_ranks(args.dsums, *s.group, bp.stream());
  bp.ops().qk_row_norm_grad(args, bp.stream());
  bp.forward_grad(s.qkv, args.dqkv);
  if (!in_place) bp.free(args.dqkv);
  bp.free(args.dsums);
}
}  // namespace

Var qk_row_norm(Tape& t, Var qkv, AttentionShape a, Parameter& gamma, float eps, ProcessGroup& g) {
  const Var y = t.recording() ? t.output(qkv.value.shape, qkv.value.dtype) : qkv;
  const Tensor sums = t.scratch({qkv.value.shape.rows(), 2}, DType::kF32);
  t.ops().qk_row_sums({.qkv = qkv.value,
                       .gamma = gamma.value,
                       .sums = sums,
                       .heads = a.heads,
                       .kv_heads = a.kv_heads,
                       .head_dim = a.head_dim},
                      t.stream());
  sum_of_ranks(sums, g, t.stream());
  t.ops().qk_row_norm({.qkv = qkv.value,
                       .gamma = gamma.value,
                       .sums = sums,
                       .out = y.value,
                       .heads = a.heads,
                       .kv_heads = a.kv_heads,
                       .head_dim = a.head_dim,
                       .ranks = g.size(),
                       .eps = eps},
                      t.stream());
  t.record(QkRowSaved{qkv, y, sums, &gamma, a, eps, &g}, qk_row_backward, [](const QkRowSaved& s, Backprop& bp) {
    if (bp.pass() == Pass::kWeight && !s.gamma->frozen) bp.ops().qk_row_norm_grad(arguments(s, bp, true), bp.stream());
  });
  return y;
}

Var vocab_embedding(Tape& t, Tensor tokens, Parameter& table, int64_t first_row, const TensorAxis& axis) {
  const int64_t n = tokens.numel(), cols = table.value.shape[1], parts = axis.splits_rows() ? axis.group.size() : 1;
  GT_CHECK(n % parts == 0, n, " tokens over ", parts, " ranks");
  Var y = t.output({n / parts, cols}, table.value.dtype);
  const Arena::Mark mark = t.activations().mark();
  const Tensor found = parts > 1 ? t.scratch({n, cols}, y.value.dtype) : y.value;
  t.ops().embedding({.tokens = tokens, .table = table.value, .out = found, .first_row = first_row}, t.stream());
  if (parts > 1)
    axis.group.reduce_scatter(found, y.value, t.stream()).wait(t.stream());
  else if (axis.group.size() > 1)
    axis.group.all_reduce(y.value, ReduceOp::kSum, t.stream()).wait(t.stream());
  t.activations().rollback(mark);
  struct Saved {
    Tensor tokens;
    Var y;
    Parameter* table;
    int64_t first_row;
    ProcessGroup* gathers;
  };
  t.record(Saved{tokens, y, &table, first_row, parts > 1 ? &axis.group : nullptr}, nullptr,
           [](const Saved& s, Backprop& bp) {
             if (s.table->frozen) return;
             Tensor dout = bp.grad(s.y);
             if (s.gathers != nullptr) {
               dout = bp.scratch({s.tokens.numel(), dout.shape.cols()}, dout.dtype);
               s.gathers->all_gather(bp.grad(s.y), dout, bp.stream()).wait(bp.stream());
             }
             const Tensor squares = grad_squares(*s.table);
             const double before = squares ? *squares.as<double>() : -1;
             auto [dtable, acc] = bp.dst(*s.table);
             if (squares) *squares.as<double>() = before;
             bp.ops().embedding_grad({.tokens = s.tokens,
                                      .dout = dout,
                                      .dtable = dtable,
                                      .first_row = s.first_row,
                                      .accumulate = acc,
                                      .squares = squares},
                                     bp.stream());
             if (s.gathers != nullptr) bp.free(dout);
           });
  return y;
}

namespace {
struct FirstTokens {
  Var x, y;
  Positions positions;
  int64_t rows;
  bool part;  // of the rows
};

// Calls f(sequence, local row) for the sequences whose first token this rank holds.
template <class F>
void each_first(const FirstTokens& s, F f) {
  for (int64_t i = 0; i < s.y.value.shape.rows(); ++i)
    if (const int64_t row = s.positions.row_of(i); row >= 0 && row < s.rows) f(i, row);
}
}  // namespace

Var first_tokens(Tape& t, Var x, const MicroBatch& mb, const TensorAxis& axis) {
  const RowSlice held = axis.rows(mb);
  const Var y = t.output({mb.batch, x.value.shape.cols()}, x.value.dtype);
  const FirstTokens saved{x, y, mb.rows(held.first), held.rows, axis.splits_rows()};
  if (axis.splits_rows())  // 0 times a row that there is
    for (int64_t i = 0; i < mb.batch; ++i)
      t.ops().scale({.x = x.value.slice(0, 1), .out = y.value.slice(i, 1), .factor = 0}, t.stream());
  each_first(saved, [&](int64_t i, int64_t row) {
    t.ops().copy({.src = x.value.slice(row, 1), .dst = y.value.slice(i, 1)}, t.stream());
  });
  if (axis.splits_rows()) {
    proof::held_by_one(y.value, Axis::kTp);  // a row is on one rank
    axis.group.all_reduce(y.value, ReduceOp::kSum, t.stream()).wait(t.stream());
  }
  t.record(saved, [](const FirstTokens& s, Backprop& bp) {
    if (!bp.needs_grad(s.x)) return;
    const Tensor dy = bp.grad(s.y);
    each_first(s, [&](int64_t i, int64_t row) {
      const GradDst dx = bp.dst(s.x);
      GT_CHECK(dx.accumulate, "first tokens have a gradient before the others");
      if (s.part) proof::sliced(dy.slice(i, 1), Axis::kTp);  // as above
      bp.ops().axpy({.x = dy.slice(i, 1), .y = dx.tensor.slice(row, 1)}, bp.stream());
    });
  });
  return y;
}

namespace {
// Token losses and, if dlogits is given, their gradient. Several ranks all-gather (max, sum exp, target logit) of every
// row, in rank order, between two passes over the logits; a single rank makes one pass.
void cross_entropy(Tape& t, const CrossEntropy& a, ProcessGroup& g) {
  if (g.size() == 1) return t.ops().cross_entropy(a, t.stream());
  const int64_t rows = a.targets.numel(), first_col = a.logits.shape.cols() * g.rank();
  const Tensor stats = t.scratch({g.size(), rows, 3}, DType::kF32), mine = stats.slice(g.rank(), 1);
  t.ops().cross_entropy_stats({.logits = a.logits,
                               .targets = a.targets,
                               .stats = mine,
                               .first_col = first_col,
                               .vocab = a.vocab,
                               .softcap = a.softcap},
                              t.stream());
  g.all_gather(mine, stats, t.stream()).wait(t.stream());
  t.ops().cross_entropy_grad({.logits = a.logits,
                              .targets = a.targets,
                              .stats = stats,
                              .seed = a.seed,
                              .loss = a.loss,
                              .dlogits = a.dlogits,
                              .parts = g.size(),
                              .first_col = first_col,
                              .vocab = a.vocab,
                              .softcap = a.softcap,
                              .z_loss = a.z_loss,
                              .hits = a.hits},
                             t.stream());
}
}  // namespace

Var head_cross_entropy(Tape& t, Var x, Parameter& w, const MicroBatch& mb, int64_t vocab, int64_t chunk,
                       ProcessGroup& g, float softcap, float z_loss, const Var* b) {
  const int64_t n = x.value.shape.rows(), hidden = x.value.shape.cols(), columns = w.value.shape[0];
  const bool train = t.recording();
  const Var sums = t.output({train ? 1 : 2}, DType::kF64);
  Tensor dx = train ? t.scratch({n, hidden}, x.value.dtype) : Tensor{};
  const Tensor db = train && b != nullptr ? t.scratch({columns}, DType::kF32) : Tensor{};
  const Arena::Mark mark = t.activations().mark();
  const Tensor token_loss = t.scratch({n}, DType::kF32), hits = train ? Tensor{} : t.scratch({n}, DType::kF32);
  const Tensor targets = mb.targets.view({n});
  for (int64_t at = 0; at < n; at += chunk) {
    const int64_t rows = std::min(chunk, n - at);
    const Arena::Mark chunk_mark = t.activations().mark();
    const Tensor logits = t.scratch({rows, columns}, x.value.dtype), xs = x.value.slice(at, rows);
    t.ops().gemm({.a = xs,
                  .b = w.value,
                  .bias = b != nullptr ? b->value : Tensor{},
                  .out = logits,
                  .trans_b = true,
                  .b_version = w.version},
                 t.stream());
    cross_entropy(t,
                  {.logits = logits,
                   .targets = targets.slice(at, rows),
                   .seed = mb.dloss.slice(0, 1),
                   .loss = token_loss.slice(at, rows),
                   .dlogits = train ? logits : Tensor{},
                   .vocab = vocab,
                   .softcap = softcap,
                   .z_loss = z_loss,
                   .hits = train ? Tensor{} : hits.slice(at, rows)},
                  g);
    if (train) {  // while the logits' gradient is in cache
      t.ops().gemm({.a = logits, .b = w.value, .out = dx.slice(at, rows), .b_version = w.version}, t.stream());
      if (auto [dw, acc] = grad_dst(w); dw)
        t.ops().gemm({.a = logits,
                      .b = xs,
                      .out = dw,
                      .trans_a = true,
                      .accumulate = acc,
                      .dbias = db,
                      .accumulate_dbias = at > 0,
                      .squares = grad_squares(w)},
                     t.stream());
      else if (db)
        t.ops().column_sums({.x = logits, .out = db, .accumulate = at > 0}, t.stream());
    }
    t.activations().rollback(chunk_mark);
  }
  t.ops().sum({.x = token_loss, .out = sums.value.slice(0, 1)}, t.stream());
  if (hits) t.ops().sum({.x = hits, .out = sums.value.slice(1, 1)}, t.stream());
  t.activations().rollback(mark);
  struct Saved {
    Var x, b;
    Tensor dx, db;
  };
  t.record(Saved{x, b != nullptr ? *b : Var{}, dx, db}, [](const Saved& s, Backprop& bp) {
    bp.forward_grad(s.x, s.dx);
    if (s.db) bp.forward_grad(s.b, s.db);
  });
  return sums;
}

}  // namespace gt::ops
