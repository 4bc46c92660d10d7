// Residual adds, norms, activations, attention and the nodes of FSDP units.
#include <algorithm>
#include <cmath>

#include "autograd/ops.h"

namespace gt::ops {

namespace {
// Sets dL/dx to dy: moved if x has its dtype, else cast.
void pass_on_as(Backprop& bp, const Var& x, Tensor dy) {
  if (!bp.needs_grad(x) || x.value.dtype == dy.dtype) return bp.forward_grad(x, dy);
  const Tensor dx = bp.scratch(dy.shape, x.value.dtype);
  bp.ops().cast({.src = dy, .dst = dx}, bp.stream());
  bp.forward_grad(x, dx);
  bp.free(dx);
}
}  // namespace

Var cast(Tape& t, Var x, DType type) {
  if (x.value.dtype == type) return x;
  Var y = t.output(x.value.shape, type);
  t.ops().cast({.src = x.value, .dst = y.value}, t.stream());
  struct Saved {
    Var x, y;
  };
  t.record(Saved{x, y}, [](const Saved& s, Backprop& bp) { pass_on_as(bp, s.x, bp.grad(s.y)); });
  return y;
}

Var parameter(Tape& t, Parameter& p) {
  const Var y = t.output(p.value.shape, p.value.dtype);
  t.ops().copy({.src = p.value, .dst = y.value}, t.stream());
  struct Saved {
    Var y;
    Parameter* p;
  };
  t.record(Saved{y, &p}, nullptr, [](const Saved& s, Backprop& bp) {
    const Tensor dy = bp.grad(s.y);
    const auto [dp, accumulate] = bp.dst(*s.p);
    if (!dp) return;
    if (accumulate)
      bp.ops().axpy({.x = dy, .y = dp}, bp.stream());
    else if (dy.dtype == dp.dtype)
      bp.ops().copy({.src = dy, .dst = dp}, bp.stream());
    else
      bp.ops().cast({.src = dy, .dst = dp}, bp.stream());
  });
  return y;
}

// Both inputs receive the same upstream gradient: shared, not copied.
Var add(Tape& t, Var a, Var b) {
  Var y = t.output(a.value.shape, b.value.dtype == DType::kF32 ? DType::kF32 : a.value.dtype);
  t.ops().add({.a = a.value, .b = b.value, .out = y.value}, t.stream());
  struct Saved {
    Var a, b, y;
  };
  t.record(Saved{a, b, y}, [](const Saved& s, Backprop& bp) {
    pass_on_as(bp, s.a, bp.grad(s.y));
    pass_on_as(bp, s.b, bp.grad(s.y));
  });
  return y;
}

namespace {
// x[i] += table[positions[i]]: positions that restart at each document. The table's gradient is that of a lookup.
Var add_document_positions(Tape& t, Var x, Parameter& table, Tensor positions) {
  const Arena::Mark mark = t.activations().mark();
  const Tensor rows = t.scratch(x.value.shape, table.value.dtype);
  t.ops().embedding({.tokens = positions, .table = table.value, .out = rows}, t.stream());
  if (rows.dtype == x.value.dtype) {
    t.ops().add({.a = x.value, .b = rows, .out = x.value}, t.stream());
  } else {
    const Tensor wide = t.scratch(rows.shape, x.value.dtype);
    t.ops().cast({.src = rows, .dst = wide}, t.stream());
    t.ops().add({.a = x.value, .b = wide, .out = x.value}, t.stream());
  }
  t.activations().rollback(mark);
  const Var y = t.output_of(x.value);
  struct Saved {
    Var x, y;
    Parameter* table;
    Tensor positions;
  };
  t.record(
      Saved{x, y, &table, positions}, [](const Saved& s, Backprop& bp) { bp.forward_grad(s.x, bp.grad(s.y)); },
      [](const Saved& s, Backprop& bp) {
        const Tensor dy = bp.grad(s.y);
        auto [dtable, acc] = bp.dst(*s.table);
        if (!dtable) return;
        bp.ops().embedding_grad({.tokens = s.positions, .dout = dy, .dtable = dtable, .accumulate = acc}, bp.stream());
      });
  return y;
}
}  // namespace

namespace {
// Calls run(begin, rows, positions) for runs of whole sequences among n rows: the rest of one, whole ones, the
// beginning of one.
template <class Run>
void by_sequences(const Positions& p, int64_t n, Run run) {
  for (int64_t at = 0, rows = 0; at < n; at += rows) {
    const int64_t begun = p.in_sequence(at).row, left = n - at, end = begun < p.run ? std::min(p.run, p.seq) : p.seq;
    const bool whole = begun == 0 && left >= p.seq;
    rows = whole ? left / p.seq * p.seq : std::min(end - begun, left);
    run(at, rows,
        whole ? Positions{.seq = p.seq, .first = p.first, .run = p.run, .gap = p.gap}
              : Positions{.seq = rows, .first = p.position(at)});
  }
}
}  // namespace

Var add_position(Tape& t, Var x, Parameter& table, const Positions& rows, Tensor documents) {
  const int64_t n = x.value.shape.rows();
  if (documents)
    return add_document_positions(t, x, table, documents.view({documents.numel()}).slice(rows.first_row, n));
  t.ops().add_position({.x = x.value, .pos = table.value, .rows = rows}, t.stream());
  Var y = t.output_of(x.value);
  struct Saved {
    Var x, y;
    Parameter* table;
    Positions rows;
  };
  t.record(
      Saved{x, y, &table, rows}, [](const Saved& s, Backprop& bp) { bp.forward_grad(s.x, bp.grad(s.y)); },
      [](const Saved& s, Backprop& bp) {
        const Tensor dy = bp.grad(s.y);
        by_sequences(s.rows, dy.shape.rows(), [&](int64_t at, int64_t count, const Positions& run) {
          auto [dpos, acc] = bp.dst(*s.table);
          if (!dpos) return;
          bp.ops().position_grad({.dout = dy.slice(at, count), .dpos = dpos, .rows = run, .accumulate = acc},
                                 bp.stream());
        });
      });
  return y;
}

Var add_rows(Tape& t, Var x, Parameter& table, Tensor indices) {
  const Arena::Mark mark = t.activations().mark();
  const Tensor rows = t.scratch(x.value.shape, table.value.dtype);
  t.ops().embedding({.tokens = indices, .table = table.value, .out = rows}, t.stream());
  t.ops().add({.a = x.value, .b = rows, .out = x.value}, t.stream());
  t.activations().rollback(mark);
  const Var y = t.output_of(x.value);
  struct Saved {
    Var x, y;
    Parameter* table;
    Tensor indices;
  };
  t.record(
      Saved{x, y, &table, indices}, [](const Saved& s, Backprop& bp) { bp.forward_grad(s.x, bp.grad(s.y)); },
      [](const Saved& s, Backprop& bp) {
        auto [dtable, acc] = bp.dst(*s.table);
        if (!dtable) return;
        bp.ops().embedding_grad({.tokens = s.indices, .dout = bp.grad(s.y), .dtable = dtable, .accumulate = acc},
                                bp.stream());
      });
  return y;
}

Var gelu(Tape& t, Var x) {
  Var y = t.output(x.value.shape, x.value.dtype);
  t.ops().gelu({.x = x.value, .out = y.value}, t.stream());
  struct Saved {
    Var x, y;
  };
  t.record(Saved{x, y}, [](const Saved& s, Backprop& bp) {
    if (!bp.needs_grad(s.x)) return;
    const Tensor dy = bp.grad(s.y);
    if (bp.sole_owner(s.y)) {  // dy has no later reader: dx overwrites it
      bp.ops().gelu_grad({.x = bp.value(s.x), .dout = dy, .dx = dy}, bp.stream());
      return bp.forward_grad(s.x, dy);
    }
    auto [dx, acc] = bp.dst(s.x);
    bp.ops().gelu_grad({.x = bp.value(s.x), .dout = dy, .dx = dx, .accumulate = acc}, bp.stream());
  });
  return y;
}

namespace {
struct NormSaved {
  Var x, delta, sum, out;
  Tensor mean, rstd;
  NormWeights weights;
  bool has_delta;
  RowDrop drop;
};

LayerNormGrad norm_arguments(const NormSaved& s, Backprop& bp) {
  const NormWeights& w = s.weights;
  return {.x = bp.value(s.sum),
          .gamma = w.gamma->value,
          .mean = s.mean,
          .rstd = s.rstd,
          .dout = bp.grad(s.out),
          .kind = w.kind,
          .gamma_offset = w.gamma_offset};
}

void add_weight_gradients(const NormSaved& s, Backprop& bp, LayerNormGrad& args) {
  const GradDst dgamma = bp.dst(*s.weights.gamma);
  args.dgamma = dgamma.tensor;
  if (s.weights.beta != nullptr) args.dbeta = bp.dst(*s.weights.beta).tensor;
  args.accumulate_dw = dgamma.accumulate;
}

// Serves an FP8 layer's request for the gradient of delta: FP8 data if the scale is known, else its amax. FP8 data come
// with column sums, because the layer then makes no pass of its own. These go to the bias gradient directly, unless
// they must be added to it.
void serve_fp8_request(Fp8Grad& codes, Backprop& bp, LayerNormGrad& args) {
  if (!codes.scale->has_history) {
    codes.has_amax = args.fp8.overwrite_amax = true;
    args.fp8.step_amax = codes.current_amax();
    return;
  }
  codes.quantized = true;
  args.fp8 = {.amax = codes.scale->amax, .scale_inv = codes.scale_inv(), .step_amax = codes.scale->step_amax};
  if (codes.rowwise.home >= 0) args.fp8.rowwise = bp.rebuild(codes.rowwise);
  args.fp8.columnwise = bp.rebuild(codes.columnwise);
  if (codes.bias == nullptr) return;
  GT_CHECK(!args.dbias, "the sums of ", codes.bias->name, "'s gradient are requested twice");
  codes.bias_done = bp.pass() == Pass::kFull && codes.bias->grad && !codes.bias->grad_dirty;
  args.dbias = codes.bias_done ? bp.dst(*codes.bias).tensor : bp.rebuild(codes.sums);
}

// dgamma and dbeta come out of the same pass over dy as dx. With deferred weight gradients they do not: all gradients
// of a unit are then computed in its weight pass, and none is kept until then.
void norm_backward(const NormSaved& s, Backprop& bp) {
  LayerNormGrad args = norm_arguments(s, bp);
  if (bp.pass() == Pass::kFull) add_weight_gradients(s, bp, args);
  if (!s.has_delta) {
    if (bp.needs_grad(s.x)) {
      const GradDst d = bp.dst(s.x);
      args.dx = d.tensor;
      args.accumulate_dx = d.accumulate;
    }
    if (args.dx || args.dgamma) bp.ops().layer_norm_grad(args, bp.stream());
    return;
  }
  args.dsum = bp.grad(s.sum);
  // dL/dsum is the gradient of both addends. dx overwrites dsum unless other slots share it or a deferred weight
  // gradient reads it.
  const bool in_place = args.dsum && bp.sole_owner(s.sum) && bp.pass() == Pass::kFull;
  args.dx = in_place ? args.dsum : bp.scratch(s.sum.value.shape, s.sum.value.dtype);
  // With dropout, delta has a gradient of its own. It overwrites dout under the same conditions.
  const bool over_dout =
      s.drop && s.delta.value.dtype == args.dout.dtype && bp.sole_owner(s.out) && bp.pass() == Pass::kFull;
  if (s.drop) {
    args.drop = s.drop;
    args.ddelta = over_dout ? args.dout : bp.scratch(s.sum.value.shape, s.delta.value.dtype);
  }
  // All of delta's gradient is computed here, and with it column sums and FP8 data, if it has the dtype that they are
  // computed from.
  if (s.drop || s.delta.value.dtype == args.dx.dtype) {
    const Backprop::Requested request = bp.requested(s.delta);
    args.dbias = request.bias.tensor;
    args.accumulate_dbias = request.bias.accumulate;
    if (request.fp8 != nullptr) serve_fp8_request(*request.fp8, bp, args);
  }
  bp.ops().layer_norm_grad(args, bp.stream());
  bp.forward_grad(s.x, args.dx);
  pass_on_as(bp, s.delta, s.drop ? args.ddelta : args.dx);
  if (s.drop && !over_dout) bp.free(args.ddelta);
  if (!in_place) bp.free(args.dx);
}

void norm_weight_gradients(const NormSaved& s, Backprop& bp) {
  if (bp.pass() != Pass::kWeight || s.weights.gamma->frozen) return;
  LayerNormGrad args = norm_arguments(s, bp);
  add_weight_gradients(s, bp, args);
  bp.ops().layer_norm_grad(args, bp.stream());
}
}  // namespace

namespace {
// A mask that drops nothing only scales.
void drop_rows(const OpTable& ops, Tensor x, Tensor out, const RowDrop& drop, Stream s) {
  if (drop.mask.threshold == 0)
    ops.scale({.x = x, .out = out, .factor = drop.mask.scale}, s);
  else
    ops.dropout({.x = x, .out = out, .drop = drop}, s);
}
}  // namespace

Var dropout(Tape& t, Var x, const RowDrop& drop) {
  if (!drop) return x;
  drop_rows(t.ops(), x.value, x.value, drop, t.stream());
  Var y = t.output_of(x.value);
  struct Saved {
    Var x, y;
    RowDrop drop;
  };
  t.record(Saved{x, y, drop}, [](const Saved& s, Backprop& bp) {
    if (!bp.needs_grad(s.x)) return;
    const Tensor dy = bp.grad(s.y);
    const bool in_place = bp.sole_owner(s.y) && bp.pass() == Pass::kFull;
    const Tensor dx = in_place ? dy : bp.scratch(dy.shape, dy.dtype);
    drop_rows(bp.ops(), dy, dx, s.drop, bp.stream());
    bp.forward_grad(s.x, dx);
    if (!in_place) bp.free(dx);
  });
  return y;
}

Var scale(Tape& t, Var x, float factor) { return dropout(t, x, {.mask = {.scale = factor}}); }

namespace {
// The norm with FP8 data of its result. While the scale is unknown, the result is stored and its amax computed first.
Fp8Tensor norm_fp8(Tape& t, LayerNorm args, Var out, const Fp8Scaling& scale, Keep keep) {
  const Fp8Tensor c = allocate_fp8(t, out, scale, keep != Keep::kInputs);
  if (scale.has_history) {
    args.fp8 = {.amax = scale.amax,
                .rowwise = c.rowwise.value,
                .columnwise = c.columnwise.value,
                .scale_inv = c.scale_inv(),
                .step_amax = scale.step_amax};
    t.ops().layer_norm(args, t.stream());
    return c;
  }
  args.fp8 = {.step_amax = c.current_amax(), .overwrite_amax = true};
  t.ops().layer_norm(args, t.stream());
  t.ops().quantize_fp8({.x = out.value,
                        .fp8 = {.amax = c.current_amax(),
                                .rowwise = c.rowwise.value,
                                .columnwise = c.columnwise.value,
                                .scale_inv = c.scale_inv(),
                                .step_amax = scale.step_amax}},
                       t.stream());
  t.discard(out);
  return c;
}
}  // namespace

namespace {
LayerNorm norm_arguments(Tensor x, const NormWeights& w, Tensor mean, Tensor rstd) {
  return {.x = x,
          .gamma = w.gamma->value,
          .beta = w.beta != nullptr ? w.beta->value : Tensor{},
          .mean = mean,
          .rstd = rstd,
          .eps = w.eps,
          .kind = w.kind,
          .gamma_offset = w.gamma_offset};
}
}  // namespace

Normed add_norm(Tape& t, Var x, const Var* delta, const NormWeights& weights, Keep keep, const RowDrop& drop,
                const Fp8Scaling* scale) {
  GT_CHECK(!drop || delta != nullptr, "dropout acts on the delta of a norm that has none");
  const Shape shape = x.value.shape, rows{shape.rows()};
  const DType type = x.value.dtype;
  const Var sum = delta ? t.output(shape, type) : x;
  const bool stored = scale == nullptr || !scale->has_history;
  const Var out = !stored                                      ? t.output_of({nullptr, shape, type, x.value.device})
                  : scale != nullptr || keep != Keep::kOutputs ? t.transient(shape, type)
                                                               : t.output(shape, type);
  const Tensor mean = weights.beta != nullptr ? t.scratch(rows, DType::kF32) : Tensor{};
  const Tensor rstd = t.scratch(rows, DType::kF32);
  LayerNorm args = norm_arguments(x.value, weights, mean, rstd);
  if (delta) args.delta = delta->value, args.sum = sum.value;
  if (stored) args.out = out.value;
  args.drop = drop;
  Fp8Tensor codes;
  if (scale != nullptr)
    codes = norm_fp8(t, args, out, *scale, keep);
  else
    t.ops().layer_norm(args, t.stream());
  t.record(NormSaved{x, delta ? *delta : Var{}, sum, out, mean, rstd, weights, delta != nullptr, drop}, norm_backward,
           norm_weight_gradients);
  return {sum, out, codes};
}

void discard(Tape& t, const Normed& n, const NormWeights& weights, Keep keep) {
  if (keep == Keep::kOutputs) return;
  if (!n.fp8_data) t.discard(n.out);
  if (keep == Keep::kFp8) return;
  struct Saved {
    Normed n;
    NormWeights weights;
  };
  t.record(Saved{n, weights}, [](const Saved& s, Backprop& bp) {
    const Shape rows{s.n.sum.value.shape.rows()};
    const bool centred = s.weights.beta != nullptr;
    const Tensor mean = centred ? bp.scratch(rows, DType::kF32) : Tensor{}, rstd = bp.scratch(rows, DType::kF32);
    LayerNorm args = norm_arguments(bp.value(s.n.sum), s.weights, mean, rstd);
    if (s.n.fp8_data)
      args.fp8 = {.amax = s.n.fp8_data.amax(),
                  .columnwise = bp.rebuild(s.n.fp8_data.columnwise),
                  .scale_inv = s.n.fp8_data.scale_inv()};
    else
      args.out = bp.rebuild(s.n.out);
    bp.ops().layer_norm(args, bp.stream());
    if (centred) bp.free(mean);
    bp.free(rstd);
  });
}

namespace {

float scale_of(const AttentionShape& a) {
  return a.scale > 0 ? a.scale : 1.f / std::sqrt(static_cast<float>(a.head_dim));
}
PackedQkv packed(const Tensor& qkv, const AttentionShape& a) {
  GT_CHECK(qkv.shape[-1] == (a.heads + 2 * a.kv_heads) * a.head_dim, "qkv of ", qkv.shape[-1], " columns");
  return {qkv, a.heads, a.kv_heads, a.head_dim};
}
AttentionSpec spec_of(const AttentionShape& a, const MicroBatch& mb, HeadDrop drop) {
  drop.seq = mb.seq;
  return {.batch = mb.batch,
          .queries = mb.seq,
          .keys = mb.seq,
          .heads = a.heads,
          .kv_heads = a.kv_heads,
          .head_dim = a.head_dim,
          .scale = scale_of(a),
          .drop = drop,
          .window = a.window,
          .softcap = a.softcap,
          .full = a.full,
          .lengths = a.full ? mb.lengths : Tensor{},
          .documents = mb.documents()};
}

}  // namespace

Var self_attention(Tape& t, Var qkv, AttentionShape a, const MicroBatch& mb, const HeadDrop& drop) {
  Var y = t.output({mb.batch * mb.seq, a.heads * a.head_dim}, qkv.value.dtype);
  Tensor lse = t.scratch({mb.batch, a.heads, mb.seq}, DType::kF32);
  const AttentionSpec spec = spec_of(a, mb, drop);
  const PackedQkv in = packed(qkv.value, a);
  t.ops().attention({.q = in.q, .k = in.k, .v = in.v, .out = y.value, .lse = lse, .spec = spec}, t.stream());
  struct Saved {
    Var qkv, y;
    Tensor lse;
    AttentionShape a;
    AttentionSpec spec;
  };
  t.record(Saved{qkv, y, lse, a, spec}, [](const Saved& s, Backprop& bp) {
    const GradDst dqkv = bp.dst(s.qkv);
    GT_CHECK(!dqkv.accumulate, "qkv feeds attention alone");
    const PackedQkv in = packed(bp.value(s.qkv), s.a), d = packed(dqkv.tensor, s.a);
    bp.ops().attention_grad({.q = in.q,
                             .k = in.k,
                             .v = in.v,
                             .out = s.y.value,
                             .lse = s.lse,
                             .dout = bp.grad(s.y),
                             .dq = d.q,
                             .dk = d.k,
                             .dv = d.v,
                             .spec = s.spec},
                            bp.stream());
  });
  return y;
}

Var cached_attention(Tape& t, Var qkv, AttentionShape a, const MicroBatch& mb) {
  GT_CHECK(!t.recording() && mb.cache != nullptr, "a key-value cache is for generation");
  const KvLayer& kv = *mb.cache;
  const PackedQkv in = packed(qkv.value, a);
  t.ops().store_kv({.k = in.k,
                    .v = in.v,
                    .sequences = mb.sequences,
                    .positions = mb.positions,
                    .keys = kv.keys,
                    .values = kv.values},
                   t.stream());
  if (mb.seq > 1) return self_attention(t, qkv, a, mb);
  Var y = t.output({mb.batch, a.heads * a.head_dim}, qkv.value.dtype);
  t.ops().cached_attention({.q = in.q,
                            .sequences = mb.sequences,
                            .positions = mb.positions,
                            .keys = kv.keys,
                            .values = kv.values,
                            .out = y.value,
                            .heads = a.heads,
                            .scale = scale_of(a),
                            .window = a.window,
                            .softcap = a.softcap},
                           t.stream());
  return y;
}

Var class_cross_entropy(Tape& t, Var logits, Tensor targets, Tensor seed) {
  const int64_t rows = logits.value.shape.rows(), classes = logits.value.shape.cols();
  const Var sums = t.output({t.recording() ? 1 : 2}, DType::kF64);
  const Tensor dlogits = t.recording() ? t.scratch(logits.value.shape, logits.value.dtype) : Tensor{};
  const Arena::Mark mark = t.activations().mark();
  const Tensor each = t.scratch({rows}, DType::kF32);
  const Tensor hits = t.recording() ? Tensor{} : t.scratch({rows}, DType::kF32);
  t.ops().cross_entropy({.logits = logits.value,
                         .targets = targets,
                         .seed = seed,
                         .loss = each,
                         .dlogits = dlogits,
                         .vocab = classes,
                         .hits = hits},
                        t.stream());
  t.ops().sum({.x = each, .out = sums.value.slice(0, 1)}, t.stream());
  if (hits) t.ops().sum({.x = hits, .out = sums.value.slice(1, 1)}, t.stream());
  t.activations().rollback(mark);
  struct Saved {
    Var logits;
    Tensor dlogits;
  };
  t.record(Saved{logits, dlogits}, [](const Saved& s, Backprop& bp) { bp.forward_grad(s.logits, s.dlogits); });
  return sums;
}

void keep_loss(Tape& t, const MicroBatch& mb, int index, const Var& sums) {
  t.ops().copy({.src = sums.value.slice(0, 1), .dst = mb.sums.slice(index, 1)}, t.stream());
  if (mb.hits && sums.value.numel() > 1)
    t.ops().copy({.src = sums.value.slice(1, 1), .dst = mb.hits.slice(index, 1)}, t.stream());
}

void enter(Tape& t, ParamUnit& unit) {
  unit.acquire(t.stream());
  struct Saved {
    ParamUnit* unit;
  };
  t.record(
      Saved{&unit}, [](const Saved& s, Backprop& bp) { s.unit->release(bp.stream()); },
      [](const Saved& s, Backprop& bp) { s.unit->grads_ready(bp.stream()); });
}

void leave(Tape& t, ParamUnit& unit) {
  unit.release(t.stream());
  struct Saved {
    ParamUnit* unit;
  };
  t.record(Saved{&unit}, [](const Saved& s, Backprop& bp) { s.unit->acquire(bp.stream()); });
}

}  // namespace gt::ops
