// CPU kernels other than GEMM, beyond the parity cases: sizes that are split among threads, vector functions over their
// whole range, every 16-bit value, and argument checks. Each on every available instruction set.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/open_stream.h"
#include "kernels/cpu/simd/isa.h"
#include "kernels/cpu/simd/simd.h"
#include "tests/kernels/every_isa.h"
#include "tests/kernels/host_table.h"
#include "tests/kernels/packed_attention.h"
#include "tests/kernels/reference/reference_ops.h"
#include "tests/support/test.h"

namespace gt::test {
namespace {

using Call = std::function<void(const OpTable&, Stream)>;
using Bytes = std::vector<std::vector<std::byte>>;

Bytes snapshot(const std::vector<Tensor>& tensors) {
  Bytes all;
  for (const Tensor& t : tensors) all.emplace_back(t.data, t.data + t.bytes());
  return all;
}

double relative_error(const Tensor& like, std::vector<std::byte> got, std::vector<std::byte> expected) {
  Tensor a = like, b = like;
  a.data = got.data(), b.data = expected.data();
  double off = 0, all = 0;
  for (int64_t i = 0; i < like.numel(); ++i) {
    const double x = get(a, i), y = get(b, i);
    off += (x - y) * (x - y), all += y * y;
  }
  return all > 0 ? std::sqrt(off / all) : std::sqrt(off);
}

// Runs from the same inputs with 1, 2 and 3 threads and through the reference: bitwise identical across threads, and
// close to the reference.
void expect_same_for_all_threads(const char* name, const std::vector<Tensor>& outputs, const Call& call) {
  const Bytes start = snapshot(outputs);
  const auto run = [&](const OpTable& ops, Stream stream) {
    for (size_t i = 0; i < outputs.size(); ++i) std::memcpy(outputs[i].data, start[i].data(), start[i].size());
    call(ops, stream);
    return snapshot(outputs);
  };
  const Bytes expected = run(reference_ops(), {});
  on_every_isa([&] {
    INFO(name);
    const DeviceApi& cpu = *cpu_backend().device;
    const OpenStream one(cpu, 0, 1), two(cpu, 0, 2), three(cpu, 0, 3);
    const Bytes got = run(*cpu_backend().ops, one);
    const bool two_same = got == run(*cpu_backend().ops, two), three_same = got == run(*cpu_backend().ops, three);
    CHECK(two_same);
    CHECK(three_same);
    for (size_t i = 0; i < outputs.size(); ++i) {
      INFO("output " << i);
      CHECK(relative_error(outputs[i], got[i], expected[i]) < 5e-6);
    }
  });
}

}  // namespace

TEST_CASE("cpu simd: elementwise ops and row sums are bitwise independent of the number of threads") {
  Tensors t;
  const int64_t n = 70'003, rows = 261, cols = 1037;
  const Tensor a = t.f32({n}), b = t.f32({n}), out = t.f32({n}), x = t.f32({rows, cols}, -4, 4),
               y = t.f32({rows, cols});
  const Tensor bias = t.f32({cols}), wide = t.f32({rows, cols});
  expect_same_for_all_threads("add", {out}, [&](auto& ops, Stream s) { ops.add({a, b, out}, s); });
  expect_same_for_all_threads("axpy", {out}, [&](auto& ops, Stream s) { ops.axpy({a, out, 0.3f}, s); });
  expect_same_for_all_threads("copy", {out}, [&](auto& ops, Stream s) { ops.copy({a, out}, s); });
  expect_same_for_all_threads("add_bias", {wide}, [&](auto& ops, Stream s) { ops.add_bias({x, bias, wide}, s); });
  expect_same_for_all_threads("gelu", {wide}, [&](auto& ops, Stream s) { ops.gelu({x, wide}, s); });
  for (const bool more : {false, true}) {
    expect_same_for_all_threads("column_sums", {bias}, [&](auto& ops, Stream s) {
      ops.column_sums({x, bias, more}, s);
    });
    expect_same_for_all_threads("gelu_grad", {wide}, [&](auto& ops, Stream s) {
      ops.gelu_grad({x, y, wide, more}, s);
    });
  }
}

TEST_CASE("cpu simd: layer norm and its gradient are bitwise independent of the number of threads") {
  for (const int64_t cols : {1, 7, 33, 129, 768}) {
    INFO("cols " << cols);
    Tensors t;
    const int64_t rows = 3 + 40'000 / cols % 523;
    const Tensor x = t.f32({rows, cols}, 2, 6), delta = t.f32({rows, cols}), sum = t.f32({rows, cols});
    const Tensor gamma = t.f32({cols}), beta = t.f32({cols}), out = t.f32({rows, cols}), mean = t.f32({rows});
    const Tensor rstd = t.f32({rows}), dout = t.f32({rows, cols}), dx = t.f32({rows, cols}), dgamma = t.f32({cols});
    const Tensor dbeta = t.f32({cols}), dbias = t.f32({cols});
    if (cols > 7) {  // with fewer columns the mean cancels; parity covers them at its own tolerance
      expect_same_for_all_threads("layer_norm", {sum, out, mean, rstd}, [&](auto& ops, Stream s) {
        ops.layer_norm({x, delta, gamma, beta, sum, out, mean, rstd}, s);
      });
    }
    for (int64_t r = 0; r < rows; ++r) mean.as<float>()[r] = 4, rstd.as<float>()[r] = 0.8f;
    expect_same_for_all_threads("layer_norm_grad", {dx, dgamma, dbeta, dbias}, [&](auto& ops, Stream s) {
      ops.layer_norm_grad(
          {x, gamma, mean, rstd, dout, delta, dx, dgamma, dbeta, true, cols % 2 == 0, {}, {}, dbias, cols % 2 == 1}, s);
    });
    // Bitwise identical to separate column sums: a layout may use either.
    const Tensor again = t.f32({cols});
    const OpTable& ops = *cpu_backend().ops;
    for (const bool more : {false, true}) {
      ops.layer_norm_grad({.x = x,
                           .gamma = gamma,
                           .mean = mean,
                           .rstd = rstd,
                           .dout = dout,
                           .dx = dx,
                           .dbias = dbias,
                           .accumulate_dbias = more},
                          {});
      ops.column_sums({dx, again, more}, {});
      CHECK(std::memcmp(dbias.data, again.data, static_cast<size_t>(again.bytes())) == 0);
    }
  }
}

TEST_CASE("cpu simd: attention of several blocks is bitwise independent of the number of threads") {
  struct Size {
    int64_t batch, seq, heads, kv_heads, dim, window = 0;
    float softcap = 0;
  };
  for (const Size z : {Size{2, 193, 3, 3, 32},
                       {1, 129, 4, 2, 64},
                       {1, 200, 2, 1, 128},
                       {1, 70, 2, 2, 45},
                       {2, 31, 1, 1, 1},
                       {1, 300, 2, 1, 24, 70, 2},
                       {1, 200, 2, 2, 8, 9}}) {
    INFO("seq " << z.seq << " dim " << z.dim << " window " << z.window);
    Tensors t;
    const int64_t n = z.batch * z.seq, width = (z.heads + 2 * z.kv_heads) * z.dim;
    const AttentionSpec spec = whole_sequences(z.batch, z.seq, z.heads, z.kv_heads, z.dim,
                                               1 / std::sqrt(static_cast<float>(z.dim)), z.window, z.softcap);
    const Tensor qkv = t.f32({n, width}, -3, 3), out = t.f32({n, z.heads * z.dim}),
                 lse = t.f32({z.batch, z.heads, z.seq});
    const Tensor dout = t.f32(out.shape), dqkv = t.f32(qkv.shape);
    expect_same_for_all_threads("attention", {out, lse},
                                [&](auto& ops, Stream s) { ops.attention(packed_attention(qkv, out, lse, spec), s); });
    reference_ops().attention(packed_attention(qkv, out, lse, spec), {});
    expect_same_for_all_threads("attention_grad", {dqkv}, [&](auto& ops, Stream s) {
      ops.attention_grad(packed_attention_grad(qkv, out, lse, dout, dqkv, spec), s);
    });
  }
}

TEST_CASE("cpu simd: a token decoded from the KV cache is bitwise its row of the full op, with any window and cap") {
  struct Rule {
    int64_t window;
    float softcap;
  };
  const int64_t seq = 200, heads = 4, kv = 2, dim = 24;
  const float scale = 0.2f;
  for (const Rule r : {Rule{0, 0}, {1, 0}, {40, 0}, {64, 0}, {65, 3}, {130, 0}, {0, 2}, {300, 5}})
    on_every_isa([&] {
      INFO("window " << r.window << " softcap " << r.softcap);
      Tensors t;
      const OpTable& ops = *cpu_backend().ops;
      const Tensor qkv = t.f32({seq, (heads + 2 * kv) * dim}, -3, 3), out = t.f32({seq, heads * dim});
      const AttentionSpec spec = whole_sequences(1, seq, heads, kv, dim, scale, r.window, r.softcap);
      ops.attention(packed_attention(qkv, out, t.f32({1, heads, seq}), spec), {});
      const PackedQkv in = packed(qkv, spec);
      const Tensor keys = t.f32({1, kv, seq, dim}), values = t.f32({1, kv, seq, dim}), got = t.f32({seq, heads * dim});
      const Tensor sequences = t.ids(seq, 0, 0), positions = t.ids(seq, 0, 0);
      for (int64_t i = 0; i < seq; ++i) positions.as<int32_t>()[i] = static_cast<int32_t>(i);
      ops.store_kv({in.k, in.v, sequences, positions, keys, values}, {});
      if (r.window > 0 && r.window < seq) {  // keys outside the last token's window are not read
        for (int64_t i = 0; i < (seq - r.window) * dim; ++i) keys.as<float>()[i] = values.as<float>()[i] = NAN;
        const Tensor last = qkv.slice(seq - 1, 1), one = got.slice(seq - 1, 1);
        ops.cached_attention({{last},
                              sequences.slice(0, 1),
                              positions.slice(seq - 1, 1),
                              keys,
                              values,
                              one,
                              heads,
                              scale,
                              r.window,
                              r.softcap},
                             {});
        CHECK(std::memcmp(one.data, out.slice(seq - 1, 1).data, static_cast<size_t>(one.bytes())) == 0);
        ops.store_kv({in.k, in.v, sequences, positions, keys, values}, {});
      }
      ops.cached_attention({in.q, sequences, positions, keys, values, got, heads, scale, r.window, r.softcap}, {});
      CHECK(std::memcmp(got.data, out.data, static_cast<size_t>(out.bytes())) == 0);
    });
}

TEST_CASE("cpu simd: attention stays exact where scores are far apart") {
  Tensors t;
  const int64_t seq = 130, dim = 16;
  const Tensor qkv = t.f32({seq, 3 * dim}, -30, 30), out = t.f32({seq, dim}), lse = t.f32({1, 1, seq});
  expect_same_for_all_threads("attention", {out, lse}, [&](auto& ops, Stream s) {
    ops.attention(packed_attention(qkv, out, lse, whole_sequences(1, seq, 1, 1, dim, 1.0f)), s);
  });
}

TEST_CASE("cpu simd: embeddings and their gradients are bitwise independent of the number of threads") {
  Tensors t;
  const int64_t n = 700, rows = 301, cols = 129, seq = 70;
  const Tensor tokens = t.ids(n, 0, 400), table = t.f32({rows, cols}), x = t.f32({n, cols}),
               dtable = t.f32({rows, cols});
  expect_same_for_all_threads("embedding", {x}, [&](auto& ops, Stream s) { ops.embedding({tokens, table, x, 50}, s); });
  const Tensor pos = t.f32({100, cols});
  expect_same_for_all_threads("add_position", {x}, [&](auto& ops, Stream s) {
    ops.add_position({x, pos, {.seq = seq, .first = 9}}, s);
  });
  for (const bool more : {false, true}) {
    expect_same_for_all_threads("embedding_grad", {dtable}, [&](auto& ops, Stream s) {
      ops.embedding_grad({tokens, x, dtable, 50, more}, s);
    });
    expect_same_for_all_threads("position_grad", {pos}, [&](auto& ops, Stream s) {
      ops.position_grad({x, pos, {.seq = seq, .first = 9}, more}, s);
    });
  }
}

TEST_CASE("cpu simd: cross-entropy is bitwise independent of the number of threads") {
  Tensors t;
  const int64_t n = 67, cols = 1001;
  const Tensor logits = t.f32({n, cols}, -9, 9), targets = t.ids(n, -1, 990), stats = t.f32({1, n, 3});
  const Tensor seed = t.f32({1}, 0.5f, 1), loss = t.f32({n}), d = t.f32({n, cols});
  expect_same_for_all_threads("cross_entropy", {loss, d}, [&](auto& ops, Stream s) {
    ops.cross_entropy({logits, targets, seed, loss, d, 990}, s);
  });
  expect_same_for_all_threads("cross_entropy_stats", {stats}, [&](auto& ops, Stream s) {
    ops.cross_entropy_stats({logits, targets, stats.view({n, 3}), 0, 990}, s);
  });
  expect_same_for_all_threads("cross_entropy_grad", {loss, d}, [&](auto& ops, Stream s) {
    ops.cross_entropy_grad({logits, targets, stats, seed, loss, d, 1, 0, 990}, s);
  });
}

TEST_CASE("cpu simd: one-pass cross-entropy is bitwise identical to the two-pass ops") {
  Tensors t;
  const int64_t n = 9, cols = 1001;
  const Tensor targets = t.ids(n, -1, 990), stats = t.f32({1, n, 3}), seed = t.f32({1}, 0.5f, 1);
  const Tensor loss = t.f32({n}), loss_16bit = t.f32({n}), wide = t.f32({n, cols}, -9, 9);
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Tensor logits = t.raw({n, cols}, type), d = t.raw({n, cols}, type), logits_16bit = t.raw({n, cols}, type);
    on_every_isa([&] {
      INFO(name_of(type));
      const OpTable& ops = *cpu_backend().ops;
      ops.cast({wide, logits}, {});
      ops.cross_entropy_stats({logits, targets, stats.view({n, 3}), 0, 990}, {});
      ops.cross_entropy_grad({logits, targets, stats, seed, loss_16bit, logits_16bit, 1, 0, 990}, {});
      ops.cross_entropy({logits, targets, seed, loss, {}, 990}, {});
      const bool loss_alone = snapshot({loss}) == snapshot({loss_16bit});
      CHECK(loss_alone);
      for (const Tensor& to : {d, logits}) {  // in place last
        ops.cross_entropy({logits, targets, seed, loss, to, 990}, {});
        const bool same = snapshot({loss, to}) == snapshot({loss_16bit, logits_16bit});
        CHECK(same);
      }
    });
  }
}

namespace {
// The same in two segments, the first of several tiles and a partial one.
std::vector<SegmentOf> in_two(const SegmentOf& all) {
  constexpr int64_t kFirst = 80'001;
  std::vector<SegmentOf> out{all, all};
  for (Tensor SegmentOf::*t : {&SegmentOf::master, &SegmentOf::grad, &SegmentOf::m, &SegmentOf::v}) {
    const int64_t n = (all.*t).numel();
    out[0].*t = (all.*t).slice(0, kFirst);
    out[1].*t = (all.*t).slice(kFirst, n - kFirst);
  }
  return out;
}
}  // namespace

TEST_CASE("cpu simd: sums and optimizer steps are bitwise independent of the number of threads") {
  Tensors t;
  const int64_t n = 100'003;
  const Tensor x = t.f32({n}, 0, 1), out = t.raw({1}, DType::kF64), w = t.f32({n}), m = t.f32({n}),
               v = t.f32({n}, 0, 1);
  const Tensor scalars = t.f32({kNumScalars});
  const float values[kNumScalars] = {1e-2f, 0.9f, 0.5f, 0.3f, 0.7f, 0, 1, 0.95f, 0.5f};
  std::memcpy(scalars.data, values, sizeof values);
  HostTables tables;
  const SegmentTable table = tables.table(in_two({w, x, m, v, {}, 0.1f}));
  expect_same_for_all_threads("sum", {out}, [&](auto& ops, Stream s) { ops.sum({x, out}, s); });
  expect_same_for_all_threads("sum_squares", {out}, [&](auto& ops, Stream s) { ops.sum_squares({table, out}, s); });
  for (const bool l2 : {false, true}) {
    expect_same_for_all_threads("adamw", {w, m, v}, [&](auto& ops, Stream s) {
      ops.adamw({table, scalars, 1e-8f, l2}, s);
    });
    expect_same_for_all_threads("sgd", {w, m}, [&](auto& ops, Stream s) { ops.sgd({table, scalars, l2}, s); });
  }
}

TEST_CASE("cpu simd: Lion, Adagrad and LAMB are bitwise independent of the number of threads") {
  Tensors t;
  const int64_t n = 100'003;
  const Tensor x = t.f32({n}, 0, 1), w = t.f32({n}), m = t.f32({n}), v = t.f32({n}, 0, 1);
  const Tensor scalars = t.f32({kNumScalars}), norms = t.raw({2}, DType::kF64), ratio = t.f32({1});
  const float values[kNumScalars] = {1e-2f, 0.9f, 0.5f, 0.3f, 0.7f, 0, 1, 0.95f, 0.5f};
  std::memcpy(scalars.data, values, sizeof values);
  HostTables tables;
  const SegmentTable table = tables.table(in_two({w, x, m, v, {}, 0.1f}));
  expect_same_for_all_threads("lion", {w, m}, [&](auto& ops, Stream s) { ops.lion({table, scalars}, s); });
  expect_same_for_all_threads("adagrad", {w, v}, [&](auto& ops, Stream s) {
    ops.adagrad({tables.table(in_two({w, x, v, {}, {}, 0.1f})), scalars}, s);
  });
  expect_same_for_all_threads("lamb_moments", {m, v, norms}, [&](auto& ops, Stream s) {
    ops.lamb_moments({table, scalars, norms, {}}, s);
  });
  expect_same_for_all_threads("lamb_apply", {w, ratio}, [&](auto& ops, Stream s) {
    ops.lamb_apply({table, scalars, norms, ratio, {}}, s);
  });
}

TEST_CASE("cpu simd: AdamW rounds the new master to the compute type, to nearest even") {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    INFO(name_of(type));
    Tensors t;
    const int64_t n = 9001;
    const Tensor w = t.f32({n}), g = t.f32({n}), m = t.f32({n}), v = t.f32({n}, 0, 1), value = t.raw({n}, type);
    const Tensor scalars = t.f32({kNumScalars}), expected = t.raw({n}, type);
    const float values[kNumScalars] = {1e-2f, 0.9f, 0.5f, 0.3f, 0.7f, 0, 1, 0.95f, 0.5f};
    std::memcpy(scalars.data, values, sizeof values);
    HostTables tables;
    const SegmentTable table = tables.table({{w, g, m, v, value, 0.1f}});
    SegmentTable of_many = table;  // values of more elements than the caches hold are written past them
    of_many.elements = int64_t{1} << 40;
    on_every_isa([&] {
      for (const SegmentTable& of : {table, of_many}) {
        cpu_backend().ops->adamw({of, scalars, 1e-8f}, {});
        for (int64_t i = 0; i < n; ++i) set(expected, i, w.as<float>()[i]);
        CHECK(std::memcmp(expected.data, value.data, static_cast<size_t>(value.bytes())) == 0);
      }
    });
  }
}

TEST_CASE("cpu simd: a dtype combination of no AMP level is refused with op, tensor and dtype") {
  Tensors t;
  const Tensor x = t.raw({4, 8}, DType::kBF16), f = t.f32({4, 8}), c = t.f32({8}), n = t.f32({4});
  const Tensor h = t.raw({4, 8}, DType::kF16), hc = t.raw({8}, DType::kF16);
  const auto message = [&](const Call& call) -> std::string {
    try {
      call(*cpu_backend().ops, {});
    } catch (const Error& e) {
      CHECK(e.code() == Exit::kUsage);
      return e.what();
    }
    return "";
  };
  const auto refused = [&](const Call& call, const char* op, const char* what) {
    const std::string error = message(call);
    INFO(error);
    CHECK(error.starts_with(op));
    CHECK(error.find(what) != std::string::npos);
  };
  refused(
      [&](auto& ops, Stream s) {
        ops.layer_norm({x, {}, c, c, {}, f, n, n}, s);
      },
      "layer_norm", "out [4, 8] is f32 beside x of bf16");
  refused(
      [&](auto& ops, Stream s) {
        ops.layer_norm({x, {}, hc, c, {}, x, n, n}, s);
      },
      "layer_norm", "gamma [8] is f16 beside x of bf16");
  refused(
      [&](auto& ops, Stream s) {
        ops.layer_norm({x, f, c, c, x, x, n, n}, s);
      },
      "layer_norm", "delta [4, 8] is f32 beside x of bf16");
  refused([&](auto& ops, Stream s) { ops.add({x, h, f}, s); }, "add", "bf16");
  refused([&](auto& ops, Stream s) { ops.add({x, f, x}, s); }, "add", "b [4, 8] is f32 beside out of bf16");
  refused([&](auto& ops, Stream s) { ops.axpy({t.ids(4, 0, 4), n, 1}, s); }, "axpy", "x [4] is i32");
  refused([&](auto& ops, Stream s) { ops.column_sums({x, hc}, s); }, "column_sums", "out [8] is f16; gradients");
  refused([&](auto& ops, Stream s) { ops.add_bias({x, hc, x}, s); }, "add_bias", "bias is f16 beside x of bf16");
  refused([&](auto& ops, Stream s) { ops.gelu({x, h}, s); }, "gelu", "x is bf16, out f16");
  refused([&](auto& ops, Stream s) { ops.gelu_grad({x, f, x}, s); }, "gelu_grad", "dx [4, 8] is bf16");
  refused([&](auto& ops, Stream s) { ops.dropout({x, f}, s); }, "dropout", "out [4, 8] is f32 beside x of bf16");
  const Tensor ids = t.ids(4, 0, 4), qkv = t.raw({4, 24}, DType::kBF16);
  refused(
      [&](auto& ops, Stream s) { ops.attention(packed_attention(qkv, f, n, whole_sequences(1, 4, 1, 1, 8, 1)), s); },
      "attention", "out [4, 8] is f32");
  refused([&](auto& ops, Stream s) { ops.embedding({ids, x, f}, s); }, "embedding", "out [4, 8] is f32 beside table");
  refused(
      [&](auto& ops, Stream s) {
        ops.embedding_grad({ids, x, h}, s);
      },
      "embedding_grad", "[4, 8] is f16; gradients of parameters are f32 or bf16");
  refused([&](auto& ops, Stream s) { ops.add_position({f, x, {.seq = 4}}, s); }, "add_position", "pos [4, 8] is bf16");
  refused(
      [&](auto& ops, Stream s) {
        ops.position_grad({x, h, {.seq = 4}}, s);
      },
      "position_grad", "dpos [4, 8] is f16");
  refused(
      [&](auto& ops, Stream s) {
        ops.cross_entropy({x, ids, c, n, f, 8}, s);
      },
      "cross_entropy", "dlogits [4, 8] is f32 beside logits of bf16");
  refused(
      [&](auto& ops, Stream s) {
        ops.cross_entropy_grad({x, ids, t.f32({4, 3}), c, n, f, 1, 0, 8}, s);
      },
      "cross_entropy_grad", "dlogits [4, 8] is f32 beside logits of bf16");

  refused(
      [&](auto& ops, Stream s) {
        ops.cross_entropy_grad({x, ids, t.f32({4, 3}), c, n, f, 1, 0, 8}, s);
      },
      "cross_entropy_grad", "dlogits [4, 8] is f32 beside logits of bf16");
  const Tensor scalars = t.f32({kNumScalars});
  HostTables tables;
  const SegmentTable beside = tables.table({{h, f, {}, {}, x}}), no_gradient = tables.table({{f, h}});
  refused([&](auto& ops, Stream s) { ops.sgd({beside, scalars}, s); }, "sgd", "master is f16");
  refused([&](auto& ops, Stream s) { ops.sgd({no_gradient, scalars}, s); }, "sgd", "grad is f16");
  refused([&](auto& ops, Stream s) { ops.sum_squares({no_gradient, n}, s); }, "sum_squares", "grad is f16");
  const Tensor f8 = t.raw({4, 8}, DType::kF8E4M3);
  const std::string cast = message([&](auto& ops, Stream s) { ops.cast({f, f8}, s); });
  CHECK(cast.find("f8e4m3") != std::string::npos);
  CHECK_THROWS_AS(cpu_backend().ops->add({f, c, f}, {}), Error);  // mismatched sizes
}

}  // namespace gt::test
