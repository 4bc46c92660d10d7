// Cross-entropy on the CPU, whole or vocabulary-parallel: rows in parallel, each row stays in cache while processed.
// 16-bit rows are widened into thread scratch.
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

int64_t row_grain(int64_t cols) { return std::max<int64_t>(1, 8192 / std::max<int64_t>(1, cols)); }

struct Columns {
  int64_t all, real;  // columns of this rank; those from `real` on are padding
  Columns(const Tensor& logits, int64_t first_col, int64_t vocab)
      : all(logits.shape.cols()), real(std::clamp<int64_t>(vocab - first_col, 0, all)) {}
};

// Softmax normalizer of a row from all ranks' statistics, in rank order.
struct Normaliser {
  float max = -std::numeric_limits<float>::infinity(), sum = 0, target = 0;
};
Normaliser combine(const float* stats, int64_t parts, int64_t rows, int64_t row) {
  Normaliser n;
  for (int64_t part = 0; part < parts; ++part) n.max = std::max(n.max, stats[(part * rows + row) * 3]);
  for (int64_t part = 0; part < parts; ++part) {
    const float* s = stats + (part * rows + row) * 3;
    n.sum += s[1] * std::exp(s[0] - n.max);
    n.target += s[2];
  }
  return n;
}

// Loss of a row with a target, and the factor of softmax * seed in its gradient, of the log-sum-exp of its logits.
struct RowLoss {
  float loss, softmax_factor;
};
RowLoss row_loss(float lse, float hot, float z_loss) {
  if (z_loss == 0) return {lse - hot, 1};
  return {lse - hot + z_loss * lse * lse, 1 + 2 * z_loss * lse};
}

float hit(float hot, float max) { return hot >= max ? 1.0f : 0.0f; }
void require_hits(const char* op, const Tensor& hits, int64_t rows) {
  require_f32(op, {{"hits", hits}});
  require_numel(op, rows, {{"hits", hits}});
}

// Thread scratch for one row of `count` columns: logits in f32, and their soft-capped values.
class RowScratch {
 public:
  RowScratch(CpuContext& c, int thread, const Tensor& logits, int64_t count, float softcap)
      : softcap_(softcap), is_16bit_(is_16bit(logits.dtype)), count_(count) {
    GT_CHECK(softcap >= 0, "cross-entropy with softcap ", softcap);
    const int64_t rows = (is_16bit_ ? 1 : 0) + (softcap > 0 ? 1 : 0);
    if (rows > 0) scratch_ = c.thread_scratch<float>(thread, rows * count);
  }
  // For 16-bit logits; f32 rows are used in place.
  float* wide() const { return is_16bit_ ? scratch_ : nullptr; }
  // Returns elements [at, at + n) of the logits in f32, soft-capped. With a cap the result does not alias wide(), which
  // may be overwritten.
  const float* read_row(const Simd& f, const Tensor& logits, int64_t at, int64_t n) const {
    const float* z = read(f, logits, at, n, wide());
    if (softcap_ == 0) return z;
    float* capped = scratch_ + (is_16bit_ ? count_ : 0);
    f.soft_cap(z, softcap_, capped, n);
    return capped;
  }
  // Converts the gradient d of such a row to that of the logits.
  void to_logits(const Simd& f, const float* row, float* d, int64_t n) const {
    if (softcap_ > 0) f.soft_cap_grad(row, softcap_, d, n);
  }

 private:
  const float softcap_;
  const bool is_16bit_;
  const int64_t count_;
  float* scratch_ = nullptr;
};

void zero(const Tensor& t, int64_t at, int64_t count) {
  const int64_t size = size_of(t.dtype);
  std::memset(t.data + at * size, 0, static_cast<size_t>(count * size));
}

}  // namespace

// Same arithmetic as the two-step form below with exponentials computed once; bitwise identical.
void cross_entropy(const CrossEntropy& p, Stream s) {
  const char* op = "cross_entropy";
  require_same(op, {"logits", p.logits}, {{"dlogits", p.dlogits}});
  require_f32(op, {{"seed", p.seed}, {"loss", p.loss}});
  require_dtype(op, DType::kI32, {{"targets", p.targets}});
  const int64_t rows = p.targets.numel();
  const Columns columns(p.logits, 0, p.vocab);
  require_numel(op, rows * columns.all, {{"logits", p.logits}});
  require_numel(op, rows, {{"loss", p.loss}});
  if (p.dlogits) require_numel(op, rows * columns.all, {{"dlogits", p.dlogits}});
  if (p.hits) require_hits(op, p.hits, rows);
  GT_CHECK(!p.dlogits || p.seed.numel() == 1, op, ": dlogits without a seed");
  CpuContext& context = cpu_context(s);
  parallel_for(s, rows, row_grain(columns.all), [&, &f = simd()](int64_t begin, int64_t end, int thread) {
    const RowScratch scratch(context, thread, p.logits, columns.all, p.softcap);
    for (int64_t r = begin; r < end; ++r) {
      const int64_t at = r * columns.all, token = p.targets.as<int32_t>()[r];
      float& loss = p.loss.as<float>()[r];
      if (token < 0) {
        loss = 0;
        if (p.hits) p.hits.as<float>()[r] = 0;
        if (p.dlogits) zero(p.dlogits, at, columns.all);
        continue;
      }
      const float* z = scratch.read_row(f, p.logits, at, columns.real);
      const float hot = token < columns.real ? z[token] : 0.0f;
      float max, sum;
      if (!p.dlogits) {
        f.softmax_stats(z, columns.real, &max, &sum);
        loss = row_loss(std::log(sum) + max, hot, p.z_loss).loss;
        if (p.hits) p.hits.as<float>()[r] = hit(hot, max);
        continue;
      }
      const float seed = p.seed.as<float>()[0];
      float* d = target(p.dlogits, at, scratch.wide());
      f.softmax_exps(z, d, columns.real, &max, &sum);
      const RowLoss row = row_loss(std::log(sum) + max, hot, p.z_loss);
      loss = row.loss;
      if (p.hits) p.hits.as<float>()[r] = hit(hot, max);
      f.scale(d, row.softmax_factor * seed / sum, d, columns.real);
      if (token < columns.real) d[token] -= seed;
      scratch.to_logits(f, z, d, columns.real);
      write(f, p.dlogits, at, columns.real, d);
      zero(p.dlogits, at + columns.real, columns.all - columns.real);
    }
  });
}

void cross_entropy_stats(const CrossEntropyStats& p, Stream s) {
  require_float("cross_entropy_stats", {"logits", p.logits});
  require_f32("cross_entropy_stats", {{"stats", p.stats}});
  require_dtype("cross_entropy_stats", DType::kI32, {{"targets", p.targets}});
  const int64_t rows = p.targets.numel();
  const Columns columns(p.logits, p.first_col, p.vocab);
  require_numel("cross_entropy_stats", rows * columns.all, {{"logits", p.logits}});
  require_numel("cross_entropy_stats", rows * 3, {{"stats", p.stats}});
  CpuContext& context = cpu_context(s);
  parallel_for(s, rows, row_grain(columns.all), [&, &f = simd()](int64_t begin, int64_t end, int thread) {
    const RowScratch scratch(context, thread, p.logits, columns.all, p.softcap);
    for (int64_t r = begin; r < end; ++r) {
      const float* z = scratch.read_row(f, p.logits, r * columns.all, columns.real);
      float* stats = p.stats.as<float>() + r * 3;
      f.softmax_stats(z, columns.real, stats, stats + 1);
      const int64_t target = p.targets.as<int32_t>()[r] - p.first_col;
      stats[2] = p.targets.as<int32_t>()[r] >= 0 && target >= 0 && target < columns.real ? z[target] : 0.0f;
    }
  });
}

void cross_entropy_grad(const CrossEntropyGrad& p, Stream s) {
  const char* op = "cross_entropy_grad";
  require_same(op, {"logits", p.logits}, {{"dlogits", p.dlogits}});
  require_f32(op, {{"stats", p.stats}, {"seed", p.seed}, {"loss", p.loss}});
  require_dtype(op, DType::kI32, {{"targets", p.targets}});
  const int64_t rows = p.targets.numel();
  const Columns columns(p.logits, p.first_col, p.vocab);
  require_numel(op, rows * columns.all, {{"logits", p.logits}});
  require_numel(op, rows * 3 * p.parts, {{"stats", p.stats}});
  require_numel(op, rows, {{"loss", p.loss}});
  if (p.dlogits) require_numel(op, rows * columns.all, {{"dlogits", p.dlogits}});
  if (p.hits) require_hits(op, p.hits, rows);
  GT_CHECK(!p.dlogits || p.seed.numel() == 1, op, ": dlogits without a seed");
  CpuContext& context = cpu_context(s);
  parallel_for(s, rows, row_grain(columns.all), [&, &f = simd()](int64_t begin, int64_t end, int thread) {
    const RowScratch scratch(context, thread, p.logits, columns.all, p.softcap);
    for (int64_t r = begin; r < end; ++r) {
      const int32_t token = p.targets.as<int32_t>()[r];
      const Normaliser n = combine(p.stats.as<float>(), p.parts, rows, r);
      const RowLoss row = row_loss(std::log(n.sum) + n.max, n.target, p.z_loss);
      p.loss.as<float>()[r] = token >= 0 ? row.loss : 0.0f;
      if (p.hits) p.hits.as<float>()[r] = token >= 0 ? hit(n.target, n.max) : 0.0f;
      if (!p.dlogits) continue;
      const float seed = p.seed.as<float>()[0];
      const int64_t at = r * columns.all, written = token >= 0 ? columns.real : 0;
      if (token >= 0) {
        const float* z = scratch.read_row(f, p.logits, at, columns.real);
        float* d = target(p.dlogits, at, scratch.wide());
        f.softmax_scaled(z, d, columns.real, n.max, row.softmax_factor * seed / n.sum);
        const int64_t hot = token - p.first_col;
        if (hot >= 0 && hot < columns.real) d[hot] -= seed;
        scratch.to_logits(f, z, d, columns.real);
        write(f, p.dlogits, at, columns.real, d);
      }
      zero(p.dlogits, at + written, columns.all - written);
    }
  });
}

}  // namespace gt::cpu
