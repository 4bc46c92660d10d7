// Gradients of ops other than attention (finite_difference.h).
#include "tests/kernels/finite_difference.h"

#include "kernels/core/rope.h"

namespace gt::test {
namespace {

void linear(Problem& p, bool trans_a, bool trans_b) {
  const int64_t m = 5, n = 7, k = 6;
  const Tensor a = p.random(trans_a ? Shape{k, m} : Shape{m, k}), b = p.random(trans_b ? Shape{n, k} : Shape{k, n});
  const Tensor bias = p.random({n}), out = p.empty({m, n}), dout = p.add_output(out);
  const Tensor da = p.add_input("a", a), db = p.weight_gradient_of("b", b);
  const Tensor dbias = p.weight_gradient_of("bias", bias);
  p.forward = [=, &p] {
    p.ops.gemm({.a = a, .b = b, .bias = bias, .out = out, .trans_a = trans_a, .trans_b = trans_b}, {});
  };
  p.backward = [=, &p] {
    // dA = dout op(B)^T and dB = op(A)^T dout, or their transposes.
    const Gemm grad_a = trans_a ? Gemm{.a = b, .b = dout, .out = da, .trans_a = trans_b, .trans_b = true}
                                : Gemm{.a = dout, .b = b, .out = da, .trans_b = !trans_b};
    const Gemm grad_b = trans_b ? Gemm{.a = dout, .b = a, .out = db, .trans_a = true, .trans_b = trans_a}
                                : Gemm{.a = a, .b = dout, .out = db, .trans_a = !trans_a};
    p.ops.gemm(grad_a, {});
    p.ops.gemm(grad_b, {});
    p.ops.column_sums({.x = dout, .out = dbias}, {});
  };
}

}  // namespace

TEST_CASE("finite differences: gemm and its bias, all transposes") {
  for (const bool trans_a : {false, true}) {
    for (const bool trans_b : {false, true}) {
      INFO("transposed: a " << trans_a << " b " << trans_b);
      expect_gradients([=](Problem& p) { linear(p, trans_a, trans_b); });
    }
  }
}

TEST_CASE("finite differences: the fused MLP, GELU forward and backward and bias gradients as epilogues") {
  expect_gradients([](Problem& p) {
    const Tensor x = p.random({5, 6}), up = p.random({8, 6}, 0.5), bias = p.random({8}), down = p.random({4, 8});
    const Tensor z = p.empty({5, 8}), h = p.empty({5, 8}), dz = p.empty({5, 8}), out = p.empty({5, 4});
    const Tensor dout = p.add_output(out);
    const Tensor dx = p.add_input("x", x), dup = p.weight_gradient_of("up", up);
    const Tensor dbias = p.weight_gradient_of("bias", bias), ddown = p.weight_gradient_of("down", down);
    const Tensor down_bias = p.random({4}), ddown_bias = p.weight_gradient_of("down bias", down_bias);
    p.forward = [=, &p] {
      p.ops.gemm({.a = x, .b = up, .bias = bias, .aux = z, .out = h, .trans_b = true, .epilogue = Epilogue::kGelu}, {});
      p.ops.gemm({.a = h, .b = down, .bias = down_bias, .out = out, .trans_b = true}, {});
    };
    p.backward = [=, &p] {
      p.ops.gemm({.a = dout, .b = h, .out = ddown, .trans_a = true, .dbias = ddown_bias}, {});
      p.ops.gemm({.a = dout, .b = down, .aux = z, .out = dz, .epilogue = Epilogue::kGeluGrad, .dbias = dbias}, {});
      p.ops.gemm({.a = dz, .b = x, .out = dup, .trans_a = true}, {});
      p.ops.gemm({.a = dz, .b = up, .out = dx}, {});
    };
  });
}

TEST_CASE("finite differences: add_bias and column_sums") {
  expect_gradients([](Problem& p) {
    const Tensor x = p.random({9, 7}), bias = p.random({7}), out = p.empty({9, 7}), dout = p.add_output(out);
    const Tensor dbias = p.weight_gradient_of("bias", bias);
    p.forward = [=, &p] { p.ops.add_bias({.x = x, .bias = bias, .out = out}, {}); };
    p.backward = [=, &p] { p.ops.column_sums({.x = dout, .out = dbias}, {}); };
  });
}

TEST_CASE("finite differences: gelu") {
  expect_gradients([](Problem& p) {
    const Tensor x = p.random({3, 21}, 2), out = p.empty({3, 21}), dout = p.add_output(out);
    const Tensor dx = p.add_input("x", x);
    p.forward = [=, &p] { p.ops.gelu({.x = x, .out = out}, {}); };
    p.backward = [=, &p] { p.ops.gelu_grad({.x = x, .dout = dout, .dx = dx}, {}); };
  });
}

TEST_CASE("finite differences: layer_norm, alone and with a residual and its bias") {
  for (const bool residual : {false, true}) {
    INFO("residual " << residual);
    expect_gradients([=](Problem& p) {
      const Shape s{4, 19};
      const Tensor x = p.random(s, 2, 0.5), delta = residual ? p.random(s) : Tensor{};
      const Tensor bias = residual ? p.random({19}) : Tensor{}, biased = residual ? p.empty(s) : Tensor{};
      const Tensor gamma = p.random({19}, 0.3, 1), beta = p.random({19});
      const Tensor sum = residual ? p.empty(s) : Tensor{}, out = p.empty(s), mean = p.empty({4}), rstd = p.empty({4});
      const Tensor dout = p.add_output(out), dsum = residual ? p.add_output(sum) : Tensor{};
      const Tensor dx = p.add_input("x", x), ddelta = residual ? p.add_input("delta", delta) : Tensor{};
      const Tensor dgamma = p.weight_gradient_of("gamma", gamma), dbeta = p.weight_gradient_of("beta", beta);
      const Tensor dbias = residual ? p.weight_gradient_of("bias", bias) : Tensor{};
      p.forward = [=, &p] {
        if (residual) p.ops.add_bias({.x = delta, .bias = bias, .out = biased}, {});
        p.ops.layer_norm(
            {.x = x, .delta = biased, .gamma = gamma, .beta = beta, .sum = sum, .out = out, .mean = mean, .rstd = rstd},
            {});
      };
      p.backward = [=, &p] {
        const Tensor normed = residual ? sum : x;
        p.ops.layer_norm_grad({.x = normed,
                               .gamma = gamma,
                               .mean = mean,
                               .rstd = rstd,
                               .dout = dout,
                               .dsum = dsum,
                               .dx = dx,
                               .dgamma = dgamma,
                               .dbeta = dbeta,
                               .dbias = dbias},
                              {});
        if (residual) p.ops.copy({.src = dx, .dst = ddelta}, {});  // x and delta enter alike
      };
    });
  }
}

TEST_CASE("finite differences: RMSNorm, alone and with a residual, weights with and without offset 1") {
  for (const bool residual : {false, true}) {
    INFO("residual " << residual);
    expect_gradients([=](Problem& p) {
      const Shape s{4, 19};
      const float offset = residual ? 1 : 0;
      const Tensor x = p.random(s, 2, 0.5), delta = residual ? p.random(s) : Tensor{};
      const Tensor gamma = p.random({19}, 0.3, 1 - offset), sum = residual ? p.empty(s) : Tensor{};
      const Tensor out = p.empty(s), rstd = p.empty({4});
      const Tensor dout = p.add_output(out), dsum = residual ? p.add_output(sum) : Tensor{};
      const Tensor dx = p.add_input("x", x), ddelta = residual ? p.add_input("delta", delta) : Tensor{};
      const Tensor dgamma = p.weight_gradient_of("gamma", gamma);
      p.forward = [=, &p] {
        p.ops.layer_norm({.x = x,
                          .delta = delta,
                          .gamma = gamma,
                          .sum = sum,
                          .out = out,
                          .rstd = rstd,
                          .kind = NormKind::kRms,
                          .gamma_offset = offset},
                         {});
      };
      p.backward = [=, &p] {
        p.ops.layer_norm_grad({.x = residual ? sum : x,
                               .gamma = gamma,
                               .rstd = rstd,
                               .dout = dout,
                               .dsum = dsum,
                               .dx = dx,
                               .dgamma = dgamma,
                               .kind = NormKind::kRms,
                               .gamma_offset = offset},
                              {});
        if (residual) p.ops.copy({.src = dx, .dst = ddelta}, {});  // x and delta enter alike
      };
    });
  }
}

TEST_CASE("finite differences: activations, gated and not") {
  for (const Activation kind :
       {Activation::kGelu, Activation::kSilu, Activation::kRelu2, Activation::kGeluErf, Activation::kTanh}) {
    for (const bool gated : {false, true}) {
      INFO("activation " << static_cast<int>(kind) << " gated " << gated);
      expect_gradients([=](Problem& p) {
        const Tensor x = p.random({3, gated ? 42 : 21}, 2), out = p.empty({3, 21}), dout = p.add_output(out);
        const Tensor dx = p.add_input("x", x);
        p.forward = [=, &p] { p.ops.activate({.x = x, .out = out, .kind = kind, .gated = gated}, {}); };
        p.backward = [=, &p] {
          p.ops.activate_grad({.x = x, .dout = dout, .dx = dx, .kind = kind, .gated = gated}, {});
        };
      });
    }
  }
}

TEST_CASE("finite differences: per-head norm and rotary positions, grouped queries and partial rotary") {
  expect_gradients([](Problem& p) {
    const int64_t heads = 4, kv = 2, head_dim = 10, dim = 8, seq = 5, width = (heads + 2 * kv) * head_dim;
    const Tensor qkv = p.random({7, width}, 2), out = p.empty({7, width}), rstd = p.empty({7, heads + kv});
    const Tensor q_gamma = p.random({head_dim}, 0.3, 0), k_gamma = p.random({head_dim}, 0.3, 0);
    const Tensor table = p.empty({9, dim}, DType::kF32);
    fill_rope_table(rope_inverse_frequencies(dim, 100), 1.2, 9, table.as<float>());
    const Tensor dout = p.add_output(out), dqkv = p.add_input("qkv", qkv);
    const Tensor dq = p.weight_gradient_of("q_gamma", q_gamma), dk = p.weight_gradient_of("k_gamma", k_gamma);
    const Rope turn{.x = out,
                    .table = table,
                    .heads = heads + kv,
                    .head_dim = head_dim,
                    .rows = {.seq = seq, .first_row = 3, .first = 4}};
    p.forward = [=, &p] {
      p.ops.qk_norm({.qkv = qkv,
                     .q_gamma = q_gamma,
                     .k_gamma = k_gamma,
                     .out = out,
                     .rstd = rstd,
                     .heads = heads,
                     .kv_heads = kv,
                     .head_dim = head_dim,
                     .gamma_offset = 1},
                    {});
      p.ops.rope(turn, {});
    };
    p.backward = [=, &p] {
      p.ops.copy({.src = dout, .dst = dqkv}, {});
      Rope back = turn;
      back.x = dqkv, back.backward = true;
      p.ops.rope(back, {});
      p.ops.qk_norm_grad({.qkv = qkv,
                          .q_gamma = q_gamma,
                          .k_gamma = k_gamma,
                          .rstd = rstd,
                          .dout = dqkv,
                          .dqkv = dqkv,
                          .dq_gamma = dq,
                          .dk_gamma = dk,
                          .heads = heads,
                          .kv_heads = kv,
                          .head_dim = head_dim,
                          .gamma_offset = 1},
                         {});
    };
  });
}

TEST_CASE("finite differences: the norm over all query heads and over all KV heads of a row") {
  for (const int64_t ranks : {1, 3}) {
    INFO(ranks << " ranks that hold the same");
    expect_gradients([=](Problem& p) {
      const int64_t heads = 3, kv = 1, head_dim = 10, width = (heads + 2 * kv) * head_dim;
      const Tensor qkv = p.random({7, width}, 2), out = p.empty({7, width});
      const Tensor sums = p.empty({7, 2}), dsums = p.empty({7, 2}), gamma = p.random({(heads + kv) * head_dim}, 0.3, 1);
      const Tensor dout = p.add_output(out), dqkv = p.add_input("qkv", qkv);
      const Tensor dgamma = p.weight_gradient_of("gamma", gamma);
      const auto all_ranks = [=, &p](const Tensor& t) {
        p.ops.scale({.x = t, .out = t, .factor = static_cast<float>(ranks)}, {});
      };
      p.forward = [=, &p] {
        p.ops.qk_row_sums(
            {.qkv = qkv, .gamma = gamma, .sums = sums, .heads = heads, .kv_heads = kv, .head_dim = head_dim}, {});
        all_ranks(sums);
        p.ops.qk_row_norm({.qkv = qkv,
                           .gamma = gamma,
                           .sums = sums,
                           .out = out,
                           .heads = heads,
                           .kv_heads = kv,
                           .head_dim = head_dim,
                           .ranks = ranks,
                           .eps = 1e-3f},
                          {});
      };
      p.backward = [=, &p] {
        p.ops.qk_row_sums({.qkv = qkv,
                           .gamma = gamma,
                           .dout = dout,
                           .sums = dsums,
                           .heads = heads,
                           .kv_heads = kv,
                           .head_dim = head_dim},
                          {});
        all_ranks(dsums);
        p.ops.qk_row_norm_grad({.qkv = qkv,
                                .gamma = gamma,
                                .sums = sums,
                                .dsums = dsums,
                                .dout = dout,
                                .dqkv = dqkv,
                                .dgamma = dgamma,
                                .heads = heads,
                                .kv_heads = kv,
                                .head_dim = head_dim,
                                .ranks = ranks,
                                .eps = 1e-3f},
                               {});
      };
    });
  }
}

TEST_CASE("finite differences: layer_norm with dropout of the residual branch, and dropout alone") {
  const RowDrop drop{drop_mask(99, 0.3), {.seq = 3, .first_row = 2}};
  expect_gradients([=](Problem& p) {
    const Shape s{7, 19};
    const Tensor x = p.random(s, 2, 0.5), delta = p.random(s), gamma = p.random({19}, 0.3, 1), beta = p.random({19});
    const Tensor sum = p.empty(s), out = p.empty(s), mean = p.empty({7}), rstd = p.empty({7});
    const Tensor dout = p.add_output(out), dsum = p.add_output(sum);
    const Tensor dx = p.add_input("x", x), ddelta = p.add_input("delta", delta);
    const Tensor bias = p.random({19}), biased = p.empty(s), dbias = p.weight_gradient_of("bias", bias);
    p.forward = [=, &p] {
      p.ops.add_bias({.x = delta, .bias = bias, .out = biased}, {});
      p.ops.layer_norm({.x = x,
                        .delta = biased,
                        .gamma = gamma,
                        .beta = beta,
                        .sum = sum,
                        .out = out,
                        .mean = mean,
                        .rstd = rstd,
                        .drop = drop},
                       {});
    };
    p.backward = [=, &p] {
      p.ops.layer_norm_grad({.x = sum,
                             .gamma = gamma,
                             .mean = mean,
                             .rstd = rstd,
                             .dout = dout,
                             .dsum = dsum,
                             .dx = dx,
                             .ddelta = ddelta,
                             .drop = drop,
                             .dbias = dbias},
                            {});
    };
  });
  expect_gradients([=](Problem& p) {
    const Tensor x = p.random({7, 19}), out = p.empty({7, 19}), dout = p.add_output(out), dx = p.add_input("x", x);
    p.forward = [=, &p] { p.ops.dropout({.x = x, .out = out, .drop = drop}, {}); };
    p.backward = [=, &p] { p.ops.dropout({.x = dout, .out = dx, .drop = drop}, {}); };
  });
}

TEST_CASE("finite differences: token and position embeddings") {
  expect_gradients([](Problem& p) {
    const Tensor tokens = p.tokens({3, 9, 4, 4, 12, 7, 3, 0, 5, 4});  // of rows 3..8: some outside, some repeated
    const Tensor table = p.random({6, 5}), pos = p.random({9, 5}), out = p.empty({10, 5}), dout = p.add_output(out);
    const Tensor dtable = p.weight_gradient_of("table", table), dpos = p.weight_gradient_of("positions", pos);
    p.forward = [=, &p] {
      p.ops.embedding({.tokens = tokens, .table = table, .out = out, .first_row = 3}, {});
      p.ops.add_position({.x = out, .pos = pos, .rows = {.seq = 5, .first = 2}}, {});
    };
    p.backward = [=, &p] {
      p.ops.embedding_grad({.tokens = tokens, .dout = dout, .dtable = dtable, .first_row = 3}, {});
      p.ops.position_grad({.dout = dout, .dpos = dpos, .rows = {.seq = 5, .first = 2}}, {});
    };
  });
}

TEST_CASE("finite differences: cross-entropy in one pass, with and without a soft cap and z-loss") {
  const float softcap = GENERATE(0.f, 2.5f), z_loss = GENERATE(0.f, 0.3f);
  expect_gradients([=](Problem& p) {
    const int64_t rows = 6, vocab = 13, cols = 16;
    const Tensor targets = p.tokens({0, 12, -1, 4, 5, 10}), loss = p.empty({rows}), total = p.empty({1});
    const Tensor seed = p.add_output(total), logits = p.random({rows, cols}, 2),
                 dlogits = p.add_input("logits", logits);
    const auto losses = [=, &p](const Tensor& into) {
      p.ops.cross_entropy({.logits = logits,
                           .targets = targets,
                           .seed = seed,
                           .loss = loss,
                           .dlogits = into,
                           .vocab = vocab,
                           .softcap = softcap,
                           .z_loss = z_loss},
                          {});
      double sum = 0;
      for (int64_t i = 0; i < rows; ++i) sum += get(loss, i);
      set(total, 0, sum);
    };
    p.forward = [losses] { losses({}); };
    p.backward = [losses, dlogits] { losses(dlogits); };
  });
}

TEST_CASE("finite differences: two-pass cross-entropy, whole and over a vocabulary in three slices") {
  const float softcap = GENERATE(0.f, 2.5f), z_loss = GENERATE(0.f, 0.3f);
  for (const int64_t parts : {1, 3}) {
    INFO("parts " << parts << ", softcap " << softcap << ", z-loss " << z_loss);
    expect_gradients([=](Problem& p) {
      const int64_t rows = 6, vocab = 13, cols = parts == 1 ? 16 : 5;  // two or three columns of padding
      const Tensor targets = p.tokens({0, 12, -1, 4, 5, 10});
      const Tensor stats = p.empty({parts, rows, 3}), loss = p.empty({rows}), total = p.empty({1});
      const Tensor seed = p.add_output(total);  // L = seed * sum of the losses
      std::vector<Tensor> logits, dlogits;
      for (int64_t r = 0; r < parts; ++r) {
        logits.push_back(p.random({rows, cols}, 2));
        dlogits.push_back(p.add_input("logits", logits.back()));
      }
      const auto losses = [=, &p](bool gradients) {
        for (int64_t r = 0; r < parts; ++r) {
          const Tensor part = stats.slice(r, 1).view({rows, 3});
          p.ops.cross_entropy_stats({logits[static_cast<size_t>(r)], targets, part, r * cols, vocab, softcap}, {});
        }
        for (int64_t r = 0; r < parts; ++r) {
          const Tensor into = gradients ? dlogits[static_cast<size_t>(r)] : Tensor{};
          p.ops.cross_entropy_grad({logits[static_cast<size_t>(r)], targets, stats, seed, loss, into, parts, r * cols,
                                    vocab, softcap, z_loss},
                                   {});
        }
        double sum = 0;
        for (int64_t i = 0; i < rows; ++i) sum += get(loss, i);
        set(total, 0, sum);
      };
      p.forward = [losses] { losses(false); };
      p.backward = [losses] { losses(true); };
    });
  }
}

}  // namespace gt::test
