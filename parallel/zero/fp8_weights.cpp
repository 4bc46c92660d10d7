#include "parallel/zero/fp8_weights.h"

namespace gt {
namespace {

// Workspace of a unit: scale_inv of each weight, each at an aligned address (kernels/ops.h, GemmFp8), then rowwise and
// columnwise data weight by weight.
constexpr int64_t kFactorBytes = 16;

int64_t count_of(const UnitSpec& spec) {
  int64_t n = 0;
  for (const Parameter* p : spec.params) n += p->fp8;
  return n;
}

int64_t code_bytes(const Parameter& p) { return align_up(p.local_shape.numel()); }

// Calls f(parameter, its values) for the unit's FP8 weights, in order.
template <class F>
void each_weight(const UnitState& s, Tensor values, F f) {
  for (size_t i = 0; i < s.spec.params.size(); ++i) {
    Parameter& p = *s.spec.params[i];
    if (p.fp8) f(p, values.slice(s.layout.offset[i], p.local_shape.numel()).view(p.local_shape));
  }
}

}  // namespace

Fp8Weights::Fp8Weights(const UnitList& units, const Mesh& mesh, const Backend& backend, Stream compute)
    : mesh_(mesh), backend_(backend), compute_(compute) {
  int64_t all = 0;
  for (const auto& s : units) {
    all += count_of(s->spec);
    if (s->fp8_data.bytes() > 0) kept_.push_back({s.get(), s->held_values(), s->fp8_data.data()});
  }
  amax_ = Buffer(all * size_of(DType::kF32), compute.device, *backend.device);
}

int64_t Fp8Weights::bytes_of(const UnitSpec& spec) {
  const int64_t count = count_of(spec);
  int64_t bytes = align_up(count * kFactorBytes);
  for (const Parameter* p : spec.params) bytes += p->fp8 ? 2 * code_bytes(*p) : 0;
  return bytes;
}

void Fp8Weights::quantize(std::span<const Unit> units) const {
  int64_t count = 0;
  const auto amax_at = [&](int64_t at, int64_t n) { return amax_.tensor({n}, DType::kF32, at * size_of(DType::kF32)); };
  const auto measure = [&](Tensor w, int64_t i) { backend_.ops->max_abs({.x = w, .out = amax_at(i, 1)}, compute_); };
  const bool shared = mesh_.size(Axis::kTp) > 1;
  if (shared) {
    for (const Unit& s : units) each_weight(*s.state, s.values, [&](Parameter&, Tensor w) { measure(w, count++); });
    if (count == 0) return;
    mesh_.group(Axis::kTp).all_reduce(amax_at(0, count), ReduceOp::kMax, compute_).wait(compute_);
  }
  count = 0;
  for (const Unit& s : units) {
    std::byte *factor = s.workspace, *codes = s.workspace + align_up(count_of(s.state->spec) * kFactorBytes);
    each_weight(*s.state, s.values, [&](Parameter& p, Tensor w) {
      const int64_t rows = w.shape[0], cols = w.shape[1];
      p.fp8_data = {{codes, {rows, cols}, DType::kF8E4M3, w.device},
                    {codes + code_bytes(p), {cols, rows}, DType::kF8E4M3, w.device},
                    {factor, {1}, DType::kF32, w.device}};
      factor += kFactorBytes;
      codes += 2 * code_bytes(p);
      if (!shared) measure(w, count);  // no collective in between: the weight is still in cache
      backend_.ops->quantize_fp8({.x = w,
                                  .fp8 = {.amax = amax_at(count++, 1),
                                          .rowwise = p.fp8_data.rowwise,
                                          .columnwise = p.fp8_data.columnwise,
                                          .scale_inv = p.fp8_data.scale_inv}},
                                 compute_);
    });
  }
}

void Fp8Weights::hide(const UnitState& s) {
  for (Parameter* p : s.spec.params) p->fp8_data = {};
}

}  // namespace gt
