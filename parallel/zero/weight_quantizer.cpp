#include "parallel/zero/weight_quantizer.h"

#include <algorithm>

namespace gt {
namespace {

bool splits_rows(const Parameter& p) { return p.shard.tp().dim == 1; }

// Calls f(parameter, its index, its first row) for fake-quantized weights. Those whose rows are split come first, so
// that one collective covers all of their rows. Returns the number of those rows.
template <class F>
int64_t each_weight(const UnitSpec& spec, F f) {
  int64_t at = 0, cut = 0;
  for (const bool split : {true, false}) {
    for (size_t i = 0; i < spec.params.size(); ++i) {
      const Parameter& p = *spec.params[i];
      if (!p.fake_quant || splits_rows(p) != split) continue;
      f(p, i, at);
      at += p.local_shape[0];
    }
    if (split) cut = at;
  }
  return cut;
}

}  // namespace

WeightQuantizer::WeightQuantizer(const UnitList& units, const Mesh& mesh, const Backend& backend, Stream compute)
    : mesh_(mesh), backend_(backend), compute_(compute) {
  int64_t most = 0;
  for (const auto& s : units)
    each_weight(s->spec, [&](const Parameter& p, size_t, int64_t at) { most = std::max(most, at + p.local_shape[0]); });
  amax_ = Buffer(most * size_of(DType::kF32), compute.device, *backend.device);
}

void WeightQuantizer::apply(const UnitState& s, Tensor flat) const {
  const Tensor limits = amax_.tensor({amax_.bytes() / size_of(DType::kF32)}, DType::kF32);
  const auto weight = [&](const Parameter& p, size_t i) {
    return flat.slice(s.layout.offset[i], p.local_shape.numel()).view(p.local_shape);
  };
  const int64_t cut = each_weight(s.spec, [&](const Parameter& p, size_t i, int64_t at) {
    backend_.ops->max_abs({.x = weight(p, i), .out = limits.slice(at, p.local_shape[0])}, compute_);
  });
  if (cut > 0 && mesh_.size(Axis::kTp) > 1)
    mesh_.group(Axis::kTp).all_reduce(limits.slice(0, cut), ReduceOp::kMax, compute_).wait(compute_);
  each_weight(s.spec, [&](const Parameter& p, size_t i, int64_t at) {
    const Tensor w = weight(p, i);
    backend_.ops->fake_quant({.x = w, .limits = limits.slice(at, p.local_shape[0]), .out = w}, compute_);
  });
}

}  // namespace gt
