// Element access, and reference ops on matrices: GEMM, elementwise, GELU, layer norm.
#include "tests/kernels/reference/reference_ops.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/core/rng.h"

namespace gt::test {
namespace {

template <class T>
T read(const Tensor& t, int64_t i) {
  T v;
  std::memcpy(&v, t.data + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return v;
}

template <class T>
void write(const Tensor& t, int64_t i, T v) {
  std::memcpy(t.data + i * static_cast<int64_t>(sizeof(T)), &v, sizeof(T));
}

// Rounds v to `digits` significant bits, to nearest even, with the spacing of subnormals below 2^min_exponent.
double round_to(double v, int digits, int min_exponent, double largest) {
  if (v == 0 || !std::isfinite(v)) return v;
  const int exponent = std::max(std::ilogb(v), min_exponent);
  const double spacing = std::ldexp(1.0, exponent - digits + 1);
  const double rounded = std::nearbyint(v / spacing) * spacing;
  return std::abs(rounded) > largest ? std::copysign(std::numeric_limits<double>::infinity(), v) : rounded;
}

uint16_t bf16_bits(double v) {
  if (std::isnan(v)) return 0x7FC0;
  const float f = static_cast<float>(round_to(v, 8, -126, 0x1.FEp127));
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(f) >> 16);
}

double bf16_value(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t f16_bits(double v) {
  const uint16_t sign = std::signbit(v) ? 0x8000 : 0;
  if (std::isnan(v)) return 0x7E00;
  const double r = std::abs(round_to(v, 11, -14, 65504));
  if (std::isinf(r)) return sign | 0x7C00;
  if (r < 0x1p-14) return static_cast<uint16_t>(sign | static_cast<int>(r * 0x1p24));  // subnormal: multiples of 2^-24
  const int e = std::ilogb(r);
  const int fraction = static_cast<int>((std::ldexp(r, -e) - 1) * 1024);
  return static_cast<uint16_t>(sign | (e + 15) << 10 | fraction);
}

double f16_value(uint16_t bits) {
  const double sign = bits & 0x8000 ? -1 : 1;
  const int e = bits >> 10 & 31, fraction = bits & 1023;
  if (e == 31)
    return fraction ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  return e == 0 ? sign * fraction * 0x1p-24 : sign * std::ldexp(1 + fraction / 1024.0, e - 15);
}

// FP8 format: mantissa bits, exponent bias; E4M3 has one NaN of each sign and no infinity.
struct Eight {
  int mantissa, bias;
  double largest;
};
Eight eight_of(DType t) { return t == DType::kF8E5M2 ? Eight{2, 15, 57344} : Eight{3, 7, 448}; }

double f8_value(uint8_t code, const Eight& f) {
  const double sign = code & 0x80 ? -1 : 1;
  const int e = (code & 0x7F) >> f.mantissa, units = 1 << f.mantissa, fraction = code & (units - 1);
  if (f.mantissa == 2 && e == 31)
    return fraction ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  if (f.mantissa == 3 && (code & 0x7F) == 0x7F) return std::numeric_limits<double>::quiet_NaN();
  if (e == 0) return sign * std::ldexp(fraction, 1 - f.bias - f.mantissa);
  return sign * std::ldexp(units + fraction, e - f.bias - f.mantissa);
}

uint8_t f8_bits(double v, const Eight& f) {
  if (std::isnan(v)) return 0x7F;
  const int sign = std::signbit(v) ? 0x80 : 0;
  const double r = std::min(f.largest, std::abs(round_to(v, f.mantissa + 1, 1 - f.bias, f.largest)));
  if (r < std::ldexp(1, 1 - f.bias)) return static_cast<uint8_t>(sign | int(std::ldexp(r, f.bias - 1 + f.mantissa)));
  const int e = std::ilogb(r), fraction = int(std::ldexp(r, f.mantissa - e)) - (1 << f.mantissa);
  return static_cast<uint8_t>(sign | (e + f.bias) << f.mantissa | fraction);
}

}  // namespace

double get(const Tensor& t, int64_t i) {
  switch (t.dtype) {
    case DType::kF32: return read<float>(t, i);
    case DType::kF64: return read<double>(t, i);
    case DType::kI32: return read<int32_t>(t, i);
    case DType::kI8: return read<int8_t>(t, i);
    case DType::kBF16: return bf16_value(read<uint16_t>(t, i));
    case DType::kF16: return f16_value(read<uint16_t>(t, i));
    case DType::kF8E4M3:
    case DType::kF8E5M2: return f8_value(read<uint8_t>(t, i), eight_of(t.dtype));
    default: GT_CHECK(false, "the reference does not read ", name_of(t.dtype)); return 0;
  }
}

std::vector<double> values(const Tensor& t) {
  std::vector<double> v(static_cast<size_t>(t.numel()));
  for (size_t i = 0; i < v.size(); ++i) v[i] = get(t, static_cast<int64_t>(i));
  return v;
}

void set(const Tensor& t, int64_t i, double v) {
  switch (t.dtype) {
    case DType::kF32: return write(t, i, static_cast<float>(v));
    case DType::kF64: return write(t, i, v);
    case DType::kI32: return write(t, i, static_cast<int32_t>(v));
    case DType::kI8: return write(t, i, static_cast<int8_t>(v));
    case DType::kBF16: return write(t, i, bf16_bits(v));
    case DType::kF16: return write(t, i, f16_bits(v));
    case DType::kF8E4M3:
    case DType::kF8E5M2: return write(t, i, f8_bits(v, eight_of(t.dtype)));
    default: GT_CHECK(false, "the reference does not write ", name_of(t.dtype));
  }
}

namespace reference {

double gelu_value(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

double gelu_slope(double x) {
  const double t = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

void gemm(const Gemm& p, Stream s) {
  const int64_t m = p.out.shape.rows(), n = p.out.shape.cols();
  const int64_t k = p.trans_a ? p.a.shape.rows() : p.a.shape.cols();
  const std::vector<double> values_a = values(p.a), values_b = values(p.b);
  const double *a = values_a.data(), *b = values_b.data();
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double z = 0;
      for (int64_t l = 0; l < k; ++l) z += a[p.trans_a ? l * m + i : i * k + l] * b[p.trans_b ? j * k + l : l * n + j];
      const int64_t at = i * n + j;
      if (p.accumulate) z += get(p.out, at);
      if (p.bias) z += get(p.bias, j);
      if (p.epilogue == Epilogue::kGelu) set(p.aux, at, z), z = gelu_value(get(p.aux, at));
      if (p.epilogue == Epilogue::kGeluGrad) z *= gelu_slope(get(p.aux, at));
      set(p.out, at, z);
    }
  }
  if (p.dbias) column_sums({.x = p.trans_a ? p.a : p.out, .out = p.dbias, .accumulate = p.accumulate_dbias}, s);
}

void add(const Add& p, Stream) {
  for (int64_t i = 0; i < p.out.numel(); ++i) set(p.out, i, get(p.a, i) + get(p.b, i));
}

void axpy(const Axpy& p, Stream) {
  for (int64_t i = 0; i < p.y.numel(); ++i) set(p.y, i, get(p.y, i) + p.alpha * get(p.x, i));
}

void scale(const Scale& p, Stream) {
  for (int64_t i = 0; i < p.out.numel(); ++i) set(p.out, i, get(p.x, i) * double{p.factor});
}

void normalize(const Normalize& p, Stream) {
  const double norm = std::sqrt(get(p.squares, 0)) + double{p.eps};
  for (int64_t i = 0; i < p.out.numel(); ++i) set(p.out, i, get(p.x, i) / norm);
}

void soft_cap(const SoftCap& p, Stream) {
  for (int64_t i = 0; i < p.out.numel(); ++i) set(p.out, i, p.cap * std::tanh(get(p.x, i) / p.cap));
}

void copy(const Copy& p, Stream) {
  for (int64_t i = 0; i < p.src.bytes(); ++i) p.dst.data[i] = p.src.data[i];
}

void add_bias(const AddBias& p, Stream) {
  for (int64_t i = 0; i < p.out.numel(); ++i) set(p.out, i, get(p.x, i) + get(p.bias, i % p.out.shape.cols()));
}

void column_sums(const ColumnSums& p, Stream) {
  const int64_t rows = p.x.shape.rows(), cols = p.out.numel();
  for (int64_t j = 0; j < cols; ++j) {
    double total = p.accumulate ? get(p.out, j) : 0;
    for (int64_t i = 0; i < rows; ++i) total += get(p.x, i * cols + j);
    set(p.out, j, total);
  }
}

void cast(const Cast& p, Stream) {
  for (int64_t i = 0; i < p.src.numel(); ++i) set(p.dst, i, get(p.src, i));
}

void gelu(const Gelu& p, Stream) {
  for (int64_t i = 0; i < p.out.numel(); ++i) set(p.out, i, gelu_value(get(p.x, i)));
}

void gelu_grad(const GeluGrad& p, Stream) {
  for (int64_t i = 0; i < p.dx.numel(); ++i) {
    set(p.dx, i, get(p.dout, i) * gelu_slope(get(p.x, i)) + (p.accumulate ? get(p.dx, i) : 0));
  }
}

double drop_factor(const DropMask& m, int64_t sample, int64_t e) {
  const auto words = philox(m.key, static_cast<uint64_t>(e) / 4, static_cast<uint64_t>(sample));
  return words[static_cast<size_t>(e % 4)] >= m.threshold ? double{m.scale} : 0.0;
}

int64_t position_of_row(const Positions& p, int64_t row) {
  int64_t position = p.first;
  for (int64_t r = 0; r < row; ++r) position += r + 1 == p.run ? p.gap + 1 : 1;
  return position;
}

namespace {
// Dropout factor of element `at` of a tensor with `cols` columns.
double row_factor(const RowDrop& d, int64_t cols, int64_t at) {
  const int64_t row = d.rows.first_row + at / cols;
  const int64_t width = d.width > 0 ? d.width : cols;
  return drop_factor(d.mask, d.mask.first() + row / d.rows.seq,
                     position_of_row(d.rows, row % d.rows.seq) * width + d.first_column + at % cols);
}
}  // namespace

void dropout(const Dropout& p, Stream) {
  for (int64_t i = 0; i < p.x.numel(); ++i) set(p.out, i, get(p.x, i) * row_factor(p.drop, p.x.shape.cols(), i));
}

void layer_norm(const LayerNorm& p, Stream s) {
  const int64_t rows = p.x.shape.rows(), cols = p.x.shape.cols();
  std::vector<std::byte> storage(static_cast<size_t>(p.x.bytes()));
  const Tensor out = p.out ? p.out : Tensor{storage.data(), p.x.shape, p.x.dtype, p.x.device};
  for (int64_t i = 0; i < rows; ++i) {
    if (p.delta) {
      for (int64_t j = i * cols; j < (i + 1) * cols; ++j)
        set(p.sum, j, get(p.x, j) + get(p.delta, j) * (p.drop ? row_factor(p.drop, cols, j) : 1));
    }
    const Tensor& normed = p.delta ? p.sum : p.x;
    const bool rms = p.kind == NormKind::kRms;
    double mean = 0, variance = 0;
    for (int64_t j = 0; j < cols && !rms; ++j) mean += get(normed, i * cols + j) / static_cast<double>(cols);
    for (int64_t j = 0; j < cols; ++j) {
      const double d = get(normed, i * cols + j) - mean;
      variance += d * d / static_cast<double>(cols);
    }
    const double rstd = 1 / std::sqrt(variance + p.eps);
    for (int64_t j = 0; j < cols; ++j) {
      const double y = (get(normed, i * cols + j) - mean) * rstd;
      set(out, i * cols + j, rms ? y * (p.gamma_offset + get(p.gamma, j)) : y * get(p.gamma, j) + get(p.beta, j));
    }
    if (!rms) set(p.mean, i, mean);
    set(p.rstd, i, rstd);
  }
  if (p.fp8) quantize_fp8({.x = out, .fp8 = p.fp8}, s);
}

// With y = (x - mean) rstd and g = dout gamma: dx = rstd (g - average(g) - y average(g y)). RMSNorm: mean and
// average(g) are 0.
void layer_norm_grad(const LayerNormGrad& p, Stream s) {
  const int64_t rows = p.x.shape.rows(), cols = p.x.shape.cols();
  const bool rms = p.kind == NormKind::kRms;
  const auto y = [&](int64_t i, int64_t j) {
    return (get(p.x, i * cols + j) - (rms ? 0 : get(p.mean, i))) * get(p.rstd, i);
  };
  const auto weight = [&](int64_t j) { return get(p.gamma, j) + (rms ? p.gamma_offset : 0); };
  for (int64_t j = 0; j < cols; ++j) {
    double dgamma = p.dgamma && p.accumulate_dw ? get(p.dgamma, j) : 0;
    double dbeta = p.dbeta && p.accumulate_dw ? get(p.dbeta, j) : 0;
    for (int64_t i = 0; i < rows; ++i) {
      dgamma += get(p.dout, i * cols + j) * y(i, j);
      dbeta += get(p.dout, i * cols + j);
    }
    if (p.dgamma) set(p.dgamma, j, dgamma);
    if (p.dbeta) set(p.dbeta, j, dbeta);
  }
  for (int64_t i = 0; i < rows && p.dx; ++i) {
    double average_g = 0, average_gy = 0;
    for (int64_t j = 0; j < cols; ++j) {
      const double g = get(p.dout, i * cols + j) * weight(j);
      if (!rms) average_g += g / static_cast<double>(cols);
      average_gy += g * y(i, j) / static_cast<double>(cols);
    }
    for (int64_t j = 0; j < cols; ++j) {
      const int64_t at = i * cols + j;
      const double g = get(p.dout, at) * weight(j);
      double dx = get(p.rstd, i) * (g - average_g - y(i, j) * average_gy);
      if (p.dsum) dx += get(p.dsum, at);
      if (p.accumulate_dx) dx += get(p.dx, at);
      set(p.dx, at, dx);
    }
    for (int64_t at = i * cols; p.drop && at < (i + 1) * cols; ++at)
      set(p.ddelta, at, get(p.dx, at) * row_factor(p.drop, cols, at));
  }
  const Tensor branch = p.drop ? p.ddelta : p.dx;
  if (p.dbias) column_sums({.x = branch, .out = p.dbias, .accumulate = p.accumulate_dbias}, s);
  if (p.fp8) quantize_fp8({.x = branch, .fp8 = p.fp8}, s);
}

}  // namespace reference

const OpTable& reference_ops() {
  static constexpr OpTable kTable{.name = "reference",
#define X(entry, Args, ...) .entry = reference::entry,
                                  GT_OPS(X)
#undef X
  };
  GT_COMPLETE_TABLE(kTable);
  return kTable;
}

}  // namespace gt::test
