// Quantizes f32 tiles to FP8, rowwise and columnwise (transposed). Shared by all kernels with FP8 outputs.
#pragma once
#include <algorithm>

#include "kernels/core/fp8.h"
#include "kernels/core/tensor.h"
#include "kernels/ops.h"

namespace gt::cpu {

constexpr int64_t kCodeTile = 64;

// FP8 outputs of a matrix [height, width]: rowwise [height, width], columnwise [width, height]; either may be empty.
struct Fp8Dest {
  Tensor rowwise, columnwise;
  float scale = 1;
  int64_t height = 0, width = 0;

  Fp8Format format() const { return fp8_format(rowwise ? rowwise.dtype : columnwise.dtype); }
  explicit operator bool() const { return rowwise || columnwise; }

  // Quantizes elements [r0, r0 + h) x [c0, c0 + w); h, w at most kCodeTile. Element (r, c) of the tile is
  // x[r * stride + c].
  void put(const float* x, int64_t stride, int64_t r0, int64_t c0, int64_t h, int64_t w) const {
    const Fp8Format f = format();
    uint8_t codes[kCodeTile][kCodeTile];
    for (int64_t r = 0; r < h; ++r) {
      for (int64_t c = 0; c < w; ++c) codes[r][c] = fp8_encode(x[r * stride + c] * scale, f);
      if (rowwise) std::copy_n(codes[r], w, rowwise.as<uint8_t>() + (r0 + r) * width + c0);
    }
    if (!columnwise) return;
    for (int64_t c = 0; c < w; ++c) {
      uint8_t* to = columnwise.as<uint8_t>() + (c0 + c) * height + r0;
      for (int64_t r = 0; r < h; ++r) to[r] = codes[r][c];
    }
  }
};

// Building blocks of QuantizeFp8 for other kernels. prepare_quantize: checks the arguments, writes scale_inv and
// returns the output descriptor.
Fp8Dest prepare_quantize(const char* op, const QuantizeFp8&);
// Quantizes rows [r0, r0 + kCodeTile), clipped to the last row. Returns max |h| of these rows, or 0 when amax is not
// requested.
float quantize_rows(const QuantizeFp8&, const Fp8Dest&, int64_t r0);

}  // namespace gt::cpu
