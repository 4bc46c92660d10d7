#include "parallel/zero/int8_weights.h"

namespace gt {
namespace {

bool splits_rows(const Parameter& p) { return p.shard.tp().dim == 1; }

Tensor weight_of(const UnitState& s, Tensor flat, size_t i) {
  const Parameter& p = *s.spec.params[i];
  return flat.slice(s.layout.offset[i], p.local_shape.numel()).view(p.local_shape);
}

}  // namespace

int64_t Int8Weights::rows_of(const UnitSpec& spec) {
  int64_t rows = 0;
  for (const Parameter* p : spec.params) rows += p->int8 ? p->local_shape[0] : 0;
  return rows;
}

void Int8Weights::quantize(UnitState& s, Tensor values) const {
  const Tensor scales = s.scale_values();
  const auto scales_of = [&](size_t i, int64_t row) { return scales.slice(row, s.spec.params[i]->local_shape[0]); };
  each_weight(s.spec, [&](size_t i, int64_t row) {
    backend_.ops->max_abs({.x = weight_of(s, values, i), .out = scales_of(i, row)}, compute_);
    if (splits_rows(*s.spec.params[i]) && mesh_.size(Axis::kTp) > 1)
      mesh_.group(Axis::kTp).all_reduce(scales_of(i, row), ReduceOp::kMax, compute_).wait(compute_);
  });
  backend_.ops->scale({.x = scales, .out = scales, .factor = 1.0f / 127}, compute_);
  const Buffer scratch(s.values_sharded ? s.layout.size : 0, compute_.device, *backend_.device);
  const Tensor codes = s.values_sharded ? scratch.tensor({s.layout.size}, DType::kI8) : s.held_values();
  each_weight(s.spec, [&](size_t i, int64_t row) {
    backend_.ops->quantize_int8(
        {.x = weight_of(s, values, i), .scales = scales_of(i, row), .out = weight_of(s, codes, i)}, compute_);
  });
  if (s.values_sharded) {
    const Tensor padding = codes.slice(s.elements(), s.layout.pad);
    backend_.device->zero(padding.data, padding.bytes(), compute_);
    backend_.ops->copy({.src = s.own(codes), .dst = s.value_shard()}, compute_);
  }
  backend_.device->synchronize(compute_);  // `scratch` is freed here
}

void Int8Weights::dequantize(const UnitState& s, Tensor codes, Tensor values) const {
  const Tensor scales = s.scale_values();
  each_weight(s.spec, [&](size_t i, int64_t row) {
    backend_.ops->dequantize_int8({.x = weight_of(s, codes, i),
                                   .scales = scales.slice(row, s.spec.params[i]->local_shape[0]),
                                   .out = weight_of(s, values, i)},
                                  compute_);
  });
}

}  // namespace gt
