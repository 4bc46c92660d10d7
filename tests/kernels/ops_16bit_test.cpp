// CPU ops on 16-bit tensors are bitwise identical to their f32 form on widened operands, each result rounded once. So
// the finite differences of the f32 ops (finite_difference_test.cpp) cover 16-bit types too, whose own rounding is too
// coarse to difference. Complements parity_test, which compares with the reference at the dtype's tolerance.
#include <cstring>
#include <deque>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/rng.h"
#include "kernels/cpu/simd/cast_16bit.h"
#include "tests/kernels/packed_attention.h"
#include "tests/kernels/reference/reference_ops.h"
#include "tests/support/test.h"

namespace gt::test {
namespace {

class Memory {
 public:
  Tensor make(Shape s, DType t) {
    auto& bytes = memory_.emplace_back(static_cast<size_t>(s.numel() * size_of(t)) + 8, std::byte{0xFF});
    return {bytes.data(), s, t, Device{}};
  }
  Tensor draw(Shape s, DType t, double scale = 1, double mean = 0) {
    const Tensor x = make(s, t);
    const uint64_t key = stream_key(5, cat("half ", memory_.size()));
    for (int64_t i = 0; i < x.numel(); ++i) set(x, i, mean + scale * philox_normal(key, static_cast<uint64_t>(i)));
    return x;
  }
  Tensor ids(int64_t count, int64_t below) {
    const Tensor x = make({count}, DType::kI32);
    for (int64_t i = 0; i < count; ++i) set(x, i, static_cast<double>(i * 7 % below));
    return x;
  }

 private:
  std::deque<std::vector<std::byte>> memory_;
};

// Runs the op on args and on a copy with 16-bit tensors widened to f32; results must match bitwise after rounding.
template <class Args>
class WideCopy {
 public:
  // A tensor, or the rows of a view.
  class Field {
   public:
    Field(Tensor Args::*t) : tensor_(t) {}
    Field(HeadView Args::*v) : view_(v) {}
    Tensor& of(Args& a) const { return view_ != nullptr ? (a.*view_).rows : a.*tensor_; }

   private:
    Tensor Args::*tensor_ = nullptr;
    HeadView Args::*view_ = nullptr;
  };
  WideCopy(Kernel<Args> op, Args args, std::vector<Field> in, std::vector<Field> out) : op_(op), args_(args) {
    wide_ = args_;
    for (const auto* fields : {&in, &out}) {
      for (const Field& f : *fields) {
        const Tensor& t = f.of(args_);
        const bool is_16bit = t.dtype == DType::kBF16 || t.dtype == DType::kF16;
        f.of(wide_) = memory_.make(t.shape, is_16bit ? DType::kF32 : t.dtype);
        cpu_backend().ops->cast({t, f.of(wide_)}, {});
      }
    }
    out_ = std::move(out);
  }
  void check(const char* name) {
    INFO(name);
    op_(args_, {});
    op_(wide_, {});
    for (size_t i = 0; i < out_.size(); ++i) {
      const Tensor &got = out_[i].of(args_), expected = memory_.make(got.shape, got.dtype);
      cpu_backend().ops->cast({out_[i].of(wide_), expected}, {});
      INFO("output " << i);
      const bool same_bits = std::memcmp(got.data, expected.data, static_cast<size_t>(got.bytes())) == 0;
      CHECK(same_bits);
    }
  }

 private:
  Memory memory_;
  Kernel<Args> op_;
  Args args_, wide_;
  std::vector<Field> out_;
};

template <class F>
void for_every_16bit_dtype(F f) {
  for (const CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16}) {
    try {
      set_cpu_isa(isa);
    } catch (const Error&) {
      break;  // ascending: the rest is unsupported too
    }
    for (const DType t : {DType::kBF16, DType::kF16}) {
      INFO(name_of(isa) << ' ' << name_of(t));
      f(t);
    }
  }
  set_cpu_isa(CpuIsa::kAuto);
}

constexpr DType kF32 = DType::kF32;

}  // namespace

TEST_CASE("16-bit: elementwise ops are bitwise f32 rounded once") {
  for_every_16bit_dtype([](DType t) {
    Memory m;
    const OpTable& ops = *cpu_backend().ops;
    const Shape s{19, 1131};
    const Tensor a = m.draw(s, t), b = m.draw(s, t), out = m.draw(s, t), bias = m.draw({1131}, t);
    const Tensor sums = m.draw({1131}, kF32);
    WideCopy<Add>(ops.add, {a, b, out}, {&Add::a, &Add::b}, {&Add::out}).check("add");
    WideCopy<Axpy>(ops.axpy, {a, out, 0.3f}, {&Axpy::x}, {&Axpy::y}).check("axpy");
    WideCopy<AddBias>(ops.add_bias, {a, bias, out}, {&AddBias::x, &AddBias::bias}, {&AddBias::out}).check("add_bias");
    WideCopy<ColumnSums>(ops.column_sums, {a, sums, true}, {&ColumnSums::x}, {&ColumnSums::out}).check("column_sums");
    WideCopy<Gelu>(ops.gelu, {a, out}, {&Gelu::x}, {&Gelu::out}).check("gelu");
    WideCopy<GeluGrad>(ops.gelu_grad, {a, b, out, true}, {&GeluGrad::x, &GeluGrad::dout}, {&GeluGrad::dx})
        .check("gelu'");
    WideCopy<Dropout>(ops.dropout, {a, out, {drop_mask(3, 0.2), {.seq = 7, .first_row = 1}}}, {&Dropout::x},
                      {&Dropout::out})
        .check("dropout");
  });
}

TEST_CASE("16-bit: norms are bitwise f32 rounded once, and normalize a 16-bit sum as stored") {
  for_every_16bit_dtype([](DType t) {
    Memory m;
    const OpTable& ops = *cpu_backend().ops;
    const Shape s{70, 129};
    const Tensor x = m.draw(s, t, 2, 0.5), gamma = m.draw({129}, kF32, 0.3, 1), beta = m.draw({129}, t);
    const Tensor out = m.draw(s, t), mean = m.draw({70}, kF32), rstd = m.draw({70}, kF32), dsum = m.draw(s, t);
    const Tensor dgamma = m.draw({129}, kF32), dbeta = m.draw({129}, kF32), dx = m.draw(s, t), sum = m.draw(s, t);
    using N = LayerNorm;
    WideCopy<N>(ops.layer_norm, {.x = x, .gamma = gamma, .beta = beta, .out = out, .mean = mean, .rstd = rstd},
                {&N::x, &N::gamma, &N::beta}, {&N::out, &N::mean, &N::rstd})
        .check("layer_norm");
    using G = LayerNormGrad;
    WideCopy<G>(ops.layer_norm_grad,
                {.x = x,
                 .gamma = gamma,
                 .mean = mean,
                 .rstd = rstd,
                 .dout = out,
                 .dsum = dsum,
                 .dx = dx,
                 .dgamma = dgamma,
                 .dbeta = dbeta,
                 .accumulate_dx = true,
                 .accumulate_dw = true},
                {&G::x, &G::gamma, &G::mean, &G::rstd, &G::dout, &G::dsum}, {&G::dx, &G::dgamma, &G::dbeta})
        .check("layer_norm_grad");

    // Preceding bias gradient: bitwise identical to column_sums of what was stored, with and without dropout.
    for (const RowDrop& drop : {RowDrop{}, {drop_mask(4, 0.2), {.seq = 7, .first_row = 1}}}) {
      const Tensor ddelta = drop ? m.make(s, t) : Tensor{}, dbias = m.make({129}, kF32), again = m.make({129}, kF32);
      ops.layer_norm_grad({.x = x,
                           .gamma = gamma,
                           .mean = mean,
                           .rstd = rstd,
                           .dout = out,
                           .dsum = dsum,
                           .dx = dx,
                           .ddelta = ddelta,
                           .drop = drop,
                           .dbias = dbias},
                          {});
      ops.column_sums({.x = drop ? ddelta : dx, .out = again}, {});
      CHECK(std::memcmp(dbias.data, again.data, static_cast<size_t>(dbias.bytes())) == 0);
    }

    // With a residual branch: identical to a rounded sum followed by its norm.
    const Tensor added = m.make(s, t), alone = m.make(s, t), mean_alone = m.make({70}, kF32);
    ops.layer_norm({x, dsum, gamma, beta, sum, out, mean, rstd}, {});
    ops.add({x, dsum, added}, {});
    ops.layer_norm({.x = added, .gamma = gamma, .beta = beta, .out = alone, .mean = mean_alone, .rstd = rstd}, {});
    const auto same = [](const Tensor& a, const Tensor& b) {
      return std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())) == 0;
    };
    CHECK(same(sum, added));
    CHECK(same(out, alone));
    CHECK(same(mean, mean_alone));
  });
}

TEST_CASE("16-bit: attention and its gradient are bitwise f32 rounded once") {
  for_every_16bit_dtype([](DType t) {
    if (cpu::attention_pair_gemm(t, 24) != nullptr) return;  // products of bf16: bf16_products_test.cpp
    Memory m;
    const OpTable& ops = *cpu_backend().ops;
    const int64_t batch = 2, seq = 97, heads = 4, kv = 2, dim = 24;
    const HeadDrop drop{drop_mask(9, 0.2), 0, seq};
    const Tensor qkv = m.draw({batch * seq, (heads + 2 * kv) * dim}, t), out = m.draw({batch * seq, heads * dim}, t);
    const Tensor lse = m.draw({batch, heads, seq}, kF32), dout = m.draw(out.shape, t), dq = m.draw(out.shape, t);
    const Tensor dk = m.draw({batch * seq, kv * dim}, t), dv = m.draw(dk.shape, t);
    for (const auto& [window, softcap] : {std::pair<int64_t, float>{0, 0.f}, {30, 4.f}}) {
      AttentionSpec spec = whole_sequences(batch, seq, heads, kv, dim, 0.2f, window, softcap);
      spec.drop = drop;
      const Attention a = packed_attention(qkv, out, lse, spec);
      using A = Attention;
      WideCopy<A>(ops.attention, a, {&A::q, &A::k, &A::v}, {&A::out, &A::lse}).check("attention");
      using G = AttentionGrad;
      WideCopy<G>(ops.attention_grad, {a.q, a.k, a.v, out, lse, dout, {dq}, {dk}, {dv}, spec},
                  {&G::q, &G::k, &G::v, &G::out, &G::lse, &G::dout}, {&G::dq, &G::dk, &G::dv})
          .check("attention_grad");
    }
  });
}

TEST_CASE("16-bit: embeddings, cross-entropy and sums are bitwise f32 rounded once") {
  for_every_16bit_dtype([](DType t) {
    Memory m;
    const OpTable& ops = *cpu_backend().ops;
    const Tensor x = m.draw({60, 1100}, t), pos = m.draw({30, 1100}, t), ids = m.ids(60, 17);
    const Tensor dtable = m.draw({17, 1100}, kF32), dpos = m.draw({30, 1100}, kF32), dlogits = m.draw(x.shape, t);
    using E = EmbeddingGrad;
    WideCopy<E>(ops.embedding_grad, {.tokens = ids, .dout = x, .dtable = dtable, .accumulate = true}, {&E::dout},
                {&E::dtable})
        .check("embedding_grad");
    WideCopy<AddPosition>(ops.add_position, {x, pos, {.seq = 20, .first = 5}}, {&AddPosition::pos}, {&AddPosition::x})
        .check("add_position");
    using P = PositionGrad;
    WideCopy<P>(ops.position_grad, {x, dpos, {.seq = 20, .first = 5}, true}, {&P::dout}, {&P::dpos})
        .check("position_grad");
    const Tensor stats = m.draw({60, 3}, kF32), seed = m.draw({1}, kF32), loss = m.draw({60}, kF32);
    using W = CrossEntropy;
    WideCopy<W>(ops.cross_entropy, {x, ids, seed, loss, dlogits, 1000}, {&W::logits, &W::seed}, {&W::loss, &W::dlogits})
        .check("cross_entropy");
    using S = CrossEntropyStats;
    WideCopy<S>(ops.cross_entropy_stats, {x, ids, stats, 0, 1000}, {&S::logits}, {&S::stats})
        .check("cross_entropy_stats");
    using C = CrossEntropyGrad;
    WideCopy<C>(ops.cross_entropy_grad, {x, ids, stats, seed, loss, dlogits, 1, 0, 1000},
                {&C::logits, &C::stats, &C::seed}, {&C::loss, &C::dlogits})
        .check("cross_entropy_grad");
    const Tensor total = m.make({1}, DType::kF64);
    set(total, 0, 0.5);
    WideCopy<Sum>(ops.sum, {x, total}, {&Sum::x}, {}).check("sum");
    const double is_16bit = get(total, 0);
    const Tensor wide = m.make(x.shape, kF32);
    ops.cast({x, wide}, {});
    ops.sum({wide, total}, {});
    CHECK(is_16bit == get(total, 0));
  });
}

}  // namespace gt::test
