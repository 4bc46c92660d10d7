#include "checkpoint/step_reader.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "checkpoint/format/shard_reader.h"

namespace gt {

StepReader::StepReader(Vfs& vfs, const std::string& step_dir) : vfs_(vfs), step_(open_step(vfs, step_dir)) {}

const TensorEntry* StepReader::find(const std::string& name) const {
  const auto& all = step_.manifest.tensors;
  const auto it = std::lower_bound(all.begin(), all.end(), name,
                                   [](const TensorEntry& t, const std::string& n) { return t.name < n; });
  return it != all.end() && it->name == name ? &*it : nullptr;
}

// Values of int8 weights: codes times the scale of their row.
std::vector<float> StepReader::read_int8(const TensorEntry& t, int64_t first, int64_t count) {
  const std::string name = "scale/" + t.name.substr(t.name.find('/') + 1);
  const TensorEntry* scales = find(name);
  GT_REQUIRE(
      scales != nullptr && t.shape.rank == 2 && scales->shape == Shape{t.shape[0]} && scales->dtype == DType::kF32,
      Exit::kDamaged, step_.path, ": ", t.name, " is i8 ", to_string(t.shape), "; expected ", name, ", f32 [",
      t.shape[0], "], found ", scales == nullptr ? "none" : cat(name_of(scales->dtype), " ", to_string(scales->shape)));
  std::vector<int8_t> codes(static_cast<size_t>(count));
  const ShardView view{.name = t.name,
                       .data = {reinterpret_cast<std::byte*>(codes.data()), {count}, DType::kI8, {}},
                       .full = t.shape,
                       .local = t.shape,
                       .begin = first};
  read_views(vfs_, step_.path, step_.manifest, std::span(&view, 1), nullptr, {}, &indexes_);
  std::vector<float> out(codes.begin(), codes.end());
  if (count == 0) return out;
  const int64_t cols = t.shape[1], row = first / cols;
  const std::vector<float> of_rows = read(*scales, row, (first + count - 1) / cols - row + 1);
  for (int64_t k = 0; k < count; ++k)
    out[static_cast<size_t>(k)] *= of_rows[static_cast<size_t>((first + k) / cols - row)];
  return out;
}

std::vector<float> StepReader::read(const TensorEntry& t, int64_t first, int64_t count) {
  if (t.dtype == DType::kI8) return read_int8(t, first, count);
  GT_REQUIRE(t.dtype == DType::kF32 || t.dtype == DType::kBF16 || t.dtype == DType::kF16, Exit::kUsage, step_.path,
             ": ", t.name, " is ", name_of(t.dtype), ", no float");
  std::vector<float> out(static_cast<size_t>(count));
  const ShardView view{.name = t.name,
                       .data = {reinterpret_cast<std::byte*>(out.data()), {count}, DType::kF32, {}},
                       .full = t.shape,
                       .local = t.shape,
                       .begin = first};
  read_views(vfs_, step_.path, step_.manifest, std::span(&view, 1), nullptr, {}, &indexes_);
  return out;
}

float f32_from_bf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float v;
  std::memcpy(&v, &wide, sizeof v);
  return v;
}

float f32_from_f16(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const float sign = bits >> 15 ? -1.f : 1.f;
  if (exponent == 31)
    return mantissa ? std::numeric_limits<float>::quiet_NaN() : sign * std::numeric_limits<float>::infinity();
  return sign * (exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                               : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25));
}

uint16_t bf16_from(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof bits);
  if (std::isnan(v)) return static_cast<uint16_t>(bits >> 16 | 64);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

uint16_t f16_from(float v) {
  const uint16_t sign = std::signbit(v) ? 0x8000 : 0;
  if (std::isnan(v)) return static_cast<uint16_t>(sign | 0x7e00);
  const float x = std::fabs(v);
  if (x == 0) return sign;
  if (x >= 65520.f) return static_cast<uint16_t>(sign | 0x7c00);  // midpoint between 65504 and the next f16 step
  int exponent = 0;
  std::frexp(x, &exponent);                       // x = m 2^exponent, m in [0.5, 1)
  const int last = std::max(exponent - 11, -24);  // weight of the last mantissa bit: 11 bits, or a subnormal
  // The default mode rounds to nearest even; scaling by powers of two is exact.
  const auto units = static_cast<uint32_t>(std::nearbyint(std::ldexp(x, -last)));
  // `units` includes the hidden bit, so a carry into the next binade carries into the exponent field.
  const uint32_t field = last == -24 ? 0 : static_cast<uint32_t>(last + 24);
  return static_cast<uint16_t>(sign | ((field << 10) + units));
}

}  // namespace gt
