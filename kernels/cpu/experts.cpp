// Routing of tokens to experts on the CPU, and what is computed row by row: scores, permutations, activations, sums.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/check_args.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/cast_16bit.h"
#include "kernels/cpu/simd/simd.h"

namespace gt::cpu {
namespace {

constexpr int64_t kChunk = 512;  // elements of a row staged on the stack

// Rows of `cost` elements that are worth a thread.
int64_t grain_of(int64_t cost) { return std::max<int64_t>(1, (int64_t{1} << 13) / std::max<int64_t>(1, cost)); }

float sigmoid(float z) { return 1 / (1 + std::exp(-z)); }

// Scores of all experts of one token, and their sum.
float score_all(GateKind kind, const float* z, int64_t count, float* out) {
  float sum = 0;
  if (kind == GateKind::kSigmoid) {
    for (int64_t e = 0; e < count; ++e) sum += out[e] = sigmoid(z[e]);
    return sum;
  }
  const float most = *std::max_element(z, z + count);
  for (int64_t e = 0; e < count; ++e) sum += out[e] = std::exp(z[e] - most);
  for (int64_t e = 0; e < count; ++e) out[e] /= sum;
  return 1;
}

// Indices of the k largest of z, in descending order; of equal ones the lower index.
void choose(const float* z, int64_t count, int32_t* out, int64_t k) {
  int64_t have = 0;
  for (int64_t e = 0; e < count; ++e) {
    int64_t at = have;
    while (at > 0 && z[e] > z[out[at - 1]]) --at;
    if (at == k) continue;
    have = std::min(have + 1, k);
    std::copy_backward(out + at, out + have - 1, out + have);
    out[at] = static_cast<int32_t>(e);
  }
}

constexpr float kLeastSum = 1e-20f;  // added to the sum that scores are divided by: sigmoids may all be 0

// Groups of experts that are not chosen from get -infinity. sums: [groups], scratch.
void mask_groups(const Gate& gate, float* scores, int64_t count, float* sums) {
  const int64_t size = count / gate.groups;
  for (int64_t g = 0; g < gate.groups; ++g) {
    int32_t best[2];
    const float* of_group = scores + g * size;
    choose(of_group, size, best, 2);
    sums[g] = of_group[best[0]] + of_group[best[1]];
  }
  for (int64_t g = 0; g < gate.groups; ++g) {
    int32_t better = 0;
    for (int64_t h = 0; h < gate.groups; ++h) better += sums[h] > sums[g] || (sums[h] == sums[g] && h < g);
    if (better >= gate.top_groups) std::fill_n(scores + g * size, size, -std::numeric_limits<float>::infinity());
  }
}

// What the experts of a token are chosen by: its logits z, or scores in `scratch`, [2 E].
const float* choice_of(const Route& p, const float* z, int64_t count, float* scratch) {
  if (!p.bias && p.gate.groups == 1) return z;
  const float* bias = p.bias ? p.bias.as<float>() : nullptr;
  for (int64_t e = 0; e < count; ++e) scratch[e] = sigmoid(z[e]) + (bias != nullptr ? bias[e] : 0);
  if (p.gate.groups > 1) mask_groups(p.gate, scratch, count, scratch + count);
  return scratch;
}

// A softmax over the chosen experts is one over all that is normalized.
bool softmax_over_chosen(const Gate& gate) { return gate.normalize; }

// Scores of the chosen experts: with a softmax over all, or over the chosen alone.
void score_chosen(const Gate& gate, const float* z, int64_t count, const int32_t* chosen, int64_t k, float* out) {
  if (gate.kind == GateKind::kSigmoid) {
    for (int64_t j = 0; j < k; ++j) out[j] = sigmoid(z[chosen[j]]);
    return;
  }
  const float most = z[chosen[0]];
  float sum = 0;
  if (softmax_over_chosen(gate))
    for (int64_t j = 0; j < k; ++j) sum += std::exp(z[chosen[j]] - most);
  else
    for (int64_t e = 0; e < count; ++e) sum += std::exp(z[e] - most);
  for (int64_t j = 0; j < k; ++j) out[j] = std::exp(z[chosen[j]] - most) / sum;
}

float sum_of(const float* x, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i];
  return sum;
}

void check_routing(const char* op, const Tensor& logits, const Tensor& experts) {
  require_f32(op, {{"logits", logits}});
  require_dtype(op, DType::kI32, {{"experts", experts}});
  GT_CHECK(experts.shape.rows() == logits.shape.rows() && experts.shape.cols() <= logits.shape.cols(), op, ": logits ",
           to_string(logits.shape), ", experts ", to_string(experts.shape));
}

void check_choice(const Route& p, int64_t count, int64_t k) {
  const Gate& g = p.gate;
  GT_CHECK((!p.bias || p.bias.numel() == count) && (!p.counts || p.counts.numel() == count), "route: bias ",
           to_string(p.bias.shape), ", counts ", to_string(p.counts.shape), " of ", count, " experts");
  if (!p.bias && g.groups == 1) return;
  GT_CHECK(g.kind == GateKind::kSigmoid, "route: a bias and groups are of sigmoid scores");
  GT_CHECK(count % g.groups == 0 && (g.groups == 1 || count / g.groups >= 2) && g.top_groups >= 1 &&
               k <= count / g.groups * std::min(g.groups, g.top_groups),
           "route: ", k, " of ", count, " experts in ", g.groups, " groups, of which ", g.top_groups);
}

// Adds the gradient of the weights w_j = scale s_j / (sum of s) of chosen sigmoid scores, or scale s_j, to that of the
// logits.
void sigmoid_gradient(const Gate& gate, const float* s, const float* dw, const int32_t* chosen, int64_t k, float* dz) {
  float sum = 1, mean = 0;
  if (gate.normalize) {
    sum = sum_of(s, k) + kLeastSum;
    for (int64_t j = 0; j < k; ++j) mean += dw[j] * s[j] / sum;
  }
  for (int64_t j = 0; j < k; ++j) dz[chosen[j]] += gate.scale * (dw[j] - mean) / sum * s[j] * (1 - s[j]);
}

// The same of softmax scores: over the chosen alone if normalized, else over all experts.
void softmax_gradient(const Gate& gate, const float* z, int64_t count, const float* s, const float* dw,
                      const int32_t* chosen, int64_t k, float* dz) {
  float mean = 0;
  for (int64_t j = 0; j < k; ++j) mean += dw[j] * s[j];
  if (gate.normalize) {
    for (int64_t j = 0; j < k; ++j) dz[chosen[j]] += gate.scale * s[j] * (dw[j] - mean);
    return;
  }
  const float first = z[chosen[0]], factor = gate.scale * mean * s[0];
  for (int64_t e = 0; e < count; ++e) dz[e] -= factor * std::exp(z[e] - first);
  for (int64_t j = 0; j < k; ++j) dz[chosen[j]] += gate.scale * s[j] * dw[j];
}

// Gradient of the loss of a sequence with the logits of one token, whose scores add up to `sum`. often: E f.
void balance_gradient(const BalanceLoss& p, const float* scores, float sum, const float* often, float* dz) {
  const int64_t count = p.logits.shape.cols();
  const float factor = p.seed.as<float>()[0] / static_cast<float>(p.seq);
  float mean = 0;
  for (int64_t e = 0; e < count; ++e) mean += often[e] * scores[e] / sum;
  for (int64_t e = 0; e < count; ++e) {
    const float ds = factor * (often[e] - mean) * scores[e] / sum;
    dz[e] = p.kind == GateKind::kSigmoid ? ds * (1 - scores[e]) : ds;
  }
}

// A stable counting sort of the items 0 .. n - 1 by group(i) in [0, groups): calls put(row, i) in ascending i. offsets
// [groups + 1] receives the first row of each group.
template <class Group, class Put>
void sort_by(const char* op, int64_t n, int64_t groups, Group group, int32_t* offsets, Put put) {
  std::fill_n(offsets, groups + 1, 0);
  for (int64_t i = 0; i < n; ++i) {
    GT_CHECK(group(i) >= 0 && group(i) < groups, op, ": group ", group(i), " of ", groups);
    ++offsets[group(i) + 1];
  }
  for (int64_t g = 0; g < groups; ++g) offsets[g + 1] += offsets[g];
  for (int64_t left = n; left > 0; --left) put(offsets[group(n - left)]++, n - left);
  std::copy_backward(offsets, offsets + groups, offsets + groups + 1);
  offsets[0] = 0;
}

}  // namespace

void route(const Route& p, Stream s) {
  check_routing("route", p.logits, p.experts);
  require_f32("route", {{"weights", p.weights}, {"bias", p.bias}});
  require_dtype("route", DType::kF64, {{"counts", p.counts}});
  const int64_t count = p.logits.shape.cols(), k = p.experts.shape.cols();
  check_choice(p, count, k);
  if (p.logits.numel() == 0) return;
  parallel_for(s, p.logits.shape.rows(), grain_of(8 * count), [&](int64_t begin, int64_t end, int thread) {
    float* scratch = cpu_context(s).thread_scratch<float>(thread, 2 * count);
    for (int64_t t = begin; t < end; ++t) {
      const float* z = p.logits.as<float>() + t * count;
      int32_t* chosen = p.experts.as<int32_t>() + t * k;
      float* w = p.weights.as<float>() + t * k;
      choose(choice_of(p, z, count, scratch), count, chosen, k);
      score_chosen(p.gate, z, count, chosen, k, w);
      const bool divides = p.gate.normalize && p.gate.kind == GateKind::kSigmoid;
      const float divisor = divides ? sum_of(w, k) + kLeastSum : 1;
      for (int64_t j = 0; j < k; ++j) w[j] = p.gate.scale * (w[j] / divisor);
    }
  });
  for (int64_t i = 0; p.counts && i < p.experts.numel(); ++i) ++p.counts.as<double>()[p.experts.as<int32_t>()[i]];
}

void route_grad(const RouteGrad& p, Stream s) {
  check_routing("route_grad", p.logits, p.experts);
  require_f32("route_grad", {{"dweights", p.dweights}, {"dlogits", p.dlogits}});
  if (p.logits.numel() == 0) return;
  const int64_t count = p.logits.shape.cols(), k = p.experts.shape.cols();
  parallel_for(s, p.logits.shape.rows(), grain_of(8 * count), [&](int64_t begin, int64_t end, int thread) {
    float* scores = cpu_context(s).thread_scratch<float>(thread, k);
    for (int64_t t = begin; t < end; ++t) {
      const float *z = p.logits.as<float>() + t * count, *dw = p.dweights.as<float>() + t * k;
      const int32_t* chosen = p.experts.as<int32_t>() + t * k;
      float* dz = p.dlogits.as<float>() + t * count;
      if (!p.accumulate) std::fill_n(dz, count, 0.f);
      score_chosen(p.gate, z, count, chosen, k, scores);
      if (p.gate.kind == GateKind::kSigmoid)
        sigmoid_gradient(p.gate, scores, dw, chosen, k, dz);
      else
        softmax_gradient(p.gate, z, count, scores, dw, chosen, k, dz);
    }
  });
}

void balance_loss(const BalanceLoss& p, Stream s) {
  check_routing("balance_loss", p.logits, p.experts);
  require_f32("balance_loss", {{"seed", p.seed}, {"loss", p.loss}, {"dlogits", p.dlogits}});
  if (p.logits.numel() == 0) return;
  const int64_t count = p.logits.shape.cols(), k = p.experts.shape.cols(), sequences = p.loss.numel();
  GT_CHECK(sequences * p.seq == p.logits.shape.rows(), "balance_loss: ", p.logits.shape.rows(), " rows of ", sequences,
           " sequences of ", p.seq);
  parallel_for(s, sequences, 1, [&](int64_t begin, int64_t end, int thread) {
    float* scores = cpu_context(s).thread_scratch<float>(thread, 3 * count);
    float *mean = scores + count, *often = mean + count;  // P and E f
    for (int64_t q = begin; q < end; ++q) {
      const float* z = p.logits.as<float>() + q * p.seq * count;
      const int32_t* chosen = p.experts.as<int32_t>() + q * p.seq * k;
      std::fill_n(mean, 2 * count, 0.f);
      const float each = static_cast<float>(count) / static_cast<float>(k * p.seq);
      for (int64_t i = 0; i < p.seq * k; ++i) often[chosen[i]] += each;
      for (int64_t t = 0; t < p.seq; ++t) {
        const float sum = score_all(p.kind, z + t * count, count, scores);
        for (int64_t e = 0; e < count; ++e) mean[e] += scores[e] / sum / static_cast<float>(p.seq);
        if (p.dlogits) balance_gradient(p, scores, sum, often, p.dlogits.as<float>() + (q * p.seq + t) * count);
      }
      float loss = 0;
      for (int64_t e = 0; e < count; ++e) loss += often[e] * mean[e];
      p.loss.as<float>()[q] = loss;
    }
  });
}

// Which slots an expert gets, and in which order, does not depend on threads: there is one.
void group_rows(const GroupRows& p, Stream) {
  require_dtype("group_rows", DType::kI32,
                {{"experts", p.experts}, {"slots", p.slots}, {"rows", p.rows}, {"offsets", p.offsets}});
  require_numel("group_rows", p.experts.numel(), {{"slots", p.slots}, {"rows", p.rows}});
  const int32_t* experts = p.experts.as<int32_t>();
  sort_by(
      "group_rows", p.experts.numel(), p.offsets.numel() - 1, [&](int64_t i) { return experts[i]; },
      p.offsets.as<int32_t>(),
      [&](int32_t row, int64_t i) {
        p.slots.as<int32_t>()[row] = static_cast<int32_t>(i);
        p.rows.as<int32_t>()[i] = row;
      });
}

void send_rows(const SendRows& p, Stream s) {
  require_dtype("send_rows", DType::kI32,
                {{"experts", p.experts},
                 {"slots", p.slots},
                 {"rows", p.rows},
                 {"copies", p.copies},
                 {"parts", p.parts},
                 {"counts", p.counts}});
  require_numel("send_rows", p.experts.numel(), {{"slots", p.slots}, {"rows", p.rows}});
  require_numel("send_rows", 2 * p.experts.numel(), {{"parts", p.parts}});
  const int64_t ranks = p.counts.numel() / 2, each = p.count / ranks, k = p.experts.shape.cols();
  GT_CHECK(each * ranks == p.count && p.copies.numel() == p.experts.numel() / k * std::min(k, ranks),
           "send_rows: ", p.count, " experts on ", ranks, " ranks, copies ", to_string(p.copies.shape));
  const int32_t* experts = p.experts.as<int32_t>();
  int32_t *offsets = cpu_context(s).scratch<int32_t>(ranks + 1), *counts = p.counts.as<int32_t>();
  int32_t *slots = p.slots.as<int32_t>(), *parts = p.parts.as<int32_t>(), *copies = p.copies.as<int32_t>();
  sort_by(
      "send_rows", p.experts.numel(), ranks, [&](int64_t i) { return experts[i] / each; }, offsets,
      [&](int32_t row, int64_t i) {
        slots[row] = static_cast<int32_t>(i);
        p.rows.as<int32_t>()[i] = row;
      });
  int32_t all = 0;
  for (int64_t d = 0; d < ranks; ++d) {
    const int32_t before = all;
    for (int32_t r = offsets[d]; r < offsets[d + 1]; ++r) {
      const int32_t token = static_cast<int32_t>(slots[r] / k);
      if (all == before || copies[all - 1] != token) copies[all++] = token;
      parts[2 * r] = all - 1 - before;
      parts[2 * r + 1] = static_cast<int32_t>(experts[slots[r]] - d * each);
    }
    counts[2 * d] = all - before, counts[2 * d + 1] = offsets[d + 1] - offsets[d];
  }
}

void receive_rows(const ReceiveRows& p, Stream s) {
  require_dtype("receive_rows", DType::kI32,
                {{"parts", p.parts},
                 {"counts", p.counts},
                 {"slots", p.slots},
                 {"tokens", p.tokens},
                 {"rows", p.rows},
                 {"offsets", p.offsets}});
  const int64_t all = p.slots.numel(), ranks = p.counts.numel() / 2;
  require_numel("receive_rows", all, {{"tokens", p.tokens}, {"rows", p.rows}});
  require_numel("receive_rows", 2 * all, {{"parts", p.parts}});
  const int32_t *parts = p.parts.as<int32_t>(), *counts = p.counts.as<int32_t>();
  int32_t* copy = cpu_context(s).scratch<int32_t>(all);  // of each part
  int64_t part = 0, before = 0;
  for (int64_t d = 0; d < ranks; before += counts[2 * d++])
    for (int64_t i = 0; i < counts[2 * d + 1]; ++i, ++part) {
      GT_CHECK(part < all && parts[2 * part] >= 0 && parts[2 * part] < counts[2 * d], "receive_rows: part ", part,
               " of ", all, ", a token of ", counts[2 * d], " copies from rank ", d);
      copy[part] = static_cast<int32_t>(before + parts[2 * part]);
    }
  GT_CHECK(part == all, "receive_rows: ", part, " parts, expected ", all);
  sort_by(
      "receive_rows", all, p.offsets.numel() - 1, [&](int64_t i) { return parts[2 * i + 1]; }, p.offsets.as<int32_t>(),
      [&](int32_t row, int64_t i) {
        p.slots.as<int32_t>()[row] = static_cast<int32_t>(i);
        p.tokens.as<int32_t>()[row] = copy[i];
        p.rows.as<int32_t>()[i] = row;
      });
}

void expert_activate(const ExpertActivate& p, Stream s) {
  require_same("expert_activate", {"x", p.x}, {{"out", p.out}});
  require_f32("expert_activate", {{"weights", p.weights}});
  require_numel("expert_activate", p.out.shape.rows(), {{"weights", p.weights}, {"slots", p.slots}});
  const int64_t cols = p.out.shape.cols(), pitch = p.gated ? 2 * cols : cols;
  GT_CHECK(p.x.shape.cols() == pitch, "expert_activate: x ", to_string(p.x.shape), ", out ", to_string(p.out.shape));
  const Simd& f = simd();
  const auto act = f.activate[static_cast<size_t>(p.kind)];
  parallel_for(s, p.out.shape.rows(), grain_of(4 * cols), [&](int64_t begin, int64_t end, int) {
    float gate[kChunk], up[kChunk], out[kChunk];
    for (int64_t r = begin; r < end; ++r)
      for (int64_t c = 0; c < cols; c += kChunk) {
        const int64_t n = std::min(kChunk, cols - c), at = r * pitch + c;
        float* to = target(p.out, r * cols + c, out);
        act(read(f, p.x, at, n, gate), p.gated ? read(f, p.x, at + cols, n, up) : nullptr, to, n);
        f.scale(to, p.weights.as<float>()[p.slots.as<int32_t>()[r]], to, n);
        write(f, p.out, r * cols + c, n, to);
      }
  });
}

void expert_activate_grad(const ExpertActivateGrad& p, Stream s) {
  require_same("expert_activate_grad", {"x", p.x}, {{"dout", p.dout}, {"dx", p.dx}});
  require_f32("expert_activate_grad", {{"weights", p.weights}, {"dweights", p.dweights}});
  require_numel("expert_activate_grad", p.dout.shape.rows(),
                {{"weights", p.weights}, {"dweights", p.dweights}, {"slots", p.slots}});
  const int64_t cols = p.dout.shape.cols(), pitch = p.gated ? 2 * cols : cols;
  GT_CHECK(p.x.shape.cols() == pitch && p.dx.numel() == p.x.numel(), "expert_activate_grad: x ", to_string(p.x.shape),
           ", dout ", to_string(p.dout.shape));
  const Simd& f = simd();
  const auto act = f.activate[static_cast<size_t>(p.kind)];
  const auto grad = f.activate_grad[static_cast<size_t>(p.kind)];
  parallel_for(s, p.dout.shape.rows(), grain_of(8 * cols), [&](int64_t begin, int64_t end, int) {
    float gate[kChunk], up[kChunk], dout[kChunk], value[kChunk], dgate[kChunk], dup[kChunk];
    for (int64_t r = begin; r < end; ++r) {
      const int32_t slot = p.slots.as<int32_t>()[r];
      float sum = 0;
      for (int64_t c = 0; c < cols; c += kChunk) {
        const int64_t n = std::min(kChunk, cols - c), at = r * pitch + c;
        const float *g = read(f, p.x, at, n, gate), *u = p.gated ? read(f, p.x, at + cols, n, up) : nullptr;
        const float* d = read(f, p.dout, r * cols + c, n, dout);
        act(g, u, value, n);
        for (int64_t i = 0; i < n; ++i) sum += value[i] * d[i];
        f.scale(d, p.weights.as<float>()[slot], value, n);
        float *to = target(p.dx, at, dgate), *to_up = p.gated ? target(p.dx, at + cols, dup) : nullptr;
        grad(g, u, value, to, to_up, n);
        write(f, p.dx, at, n, to);
        if (p.gated) write(f, p.dx, at + cols, n, to_up);
      }
      p.dweights.as<float>()[slot] = sum;
    }
  });
}

void combine_rows(const CombineRows& p, Stream s) {
  require_same("combine_rows", {"x", p.x}, {{"out", p.out}});
  require_dtype("combine_rows", DType::kI32, {{"rows", p.rows}});
  if (p.out.numel() == 0) return;
  const int64_t cols = p.out.shape.cols(), tokens = p.out.shape.rows(), k = p.rows.numel() / tokens;
  GT_CHECK(p.x.shape.cols() == cols && p.rows.numel() == k * tokens, "combine_rows: x ", to_string(p.x.shape),
           ", rows ", to_string(p.rows.shape), ", out ", to_string(p.out.shape));
  const Simd& f = simd();
  parallel_for(s, tokens, grain_of(k * cols), [&](int64_t begin, int64_t end, int) {
    float row[kChunk];
    for (int64_t t = begin; t < end; ++t)
      edit(f, p.out, t * cols, cols, p.accumulate, [&](float* to, int64_t at, int64_t count) {
        for (int64_t c = 0; c < count; c += kChunk) {
          const int64_t n = std::min(kChunk, count - c);
          float sum[kChunk];
          for (int64_t j = 0; j < k; ++j) {
            const float* x = read(f, p.x, p.rows.as<int32_t>()[t * k + j] * cols + at + c, n, row);
            if (j == 0)
              std::memcpy(sum, x, static_cast<size_t>(n) * sizeof(float));
            else
              f.add(sum, x, sum, n);
          }
          if (p.accumulate)
            f.add(to + c, sum, to + c, n);
          else
            std::memcpy(to + c, sum, static_cast<size_t>(n) * sizeof(float));
        }
      });
  });
}

}  // namespace gt::cpu
