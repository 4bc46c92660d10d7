// From floats to codes of 8 bits, as they lie and transposed, a tile at a time: what the kernels share that make codes.
#pragma once
#include <algorithm>

#include "kernels/core/fp8.h"
#include "kernels/core/tensor.h"
#include "kernels/ops.h"

namespace gt::cpu {

constexpr int64_t kCodeTile = 64;

// Where codes of a matrix [height, width] go: rows [height, width], columns [width, height], either or both.
struct CodesOut {
  Tensor rows, columns;
  float scale = 1;
  int64_t height = 0, width = 0;

  Fp8Format format() const { return fp8_format(rows ? rows.dtype : columns.dtype); }
  explicit operator bool() const { return rows || columns; }

  // Codes of elements [r0, r0 + h) x [c0, c0 + w), both at most kCodeTile; element (r, c) of them is x[r * stride + c].
  void put(const float* x, int64_t stride, int64_t r0, int64_t c0, int64_t h, int64_t w) const {
    const Fp8Format f = format();
    uint8_t codes[kCodeTile][kCodeTile];
    for (int64_t r = 0; r < h; ++r) {
      for (int64_t c = 0; c < w; ++c) codes[r][c] = fp8_encode(x[r * stride + c] * scale, f);
      if (rows) std::copy_n(codes[r], w, rows.as<uint8_t>() + (r0 + r) * width + c0);
    }
    if (!columns) return;
    for (int64_t c = 0; c < w; ++c) {
      uint8_t* to = columns.as<uint8_t>() + (c0 + c) * height + r0;
      for (int64_t r = 0; r < h; ++r) to[r] = codes[r][c];
    }
  }
};

// For QuantizeFp8, of which other kernels make parts. Checks the arguments, writes the inverse, says where codes go.
CodesOut prepare_codes(const char* op, const QuantizeFp8&);
// Codes of rows [r0, r0 + kCodeTile), or up to the last one. Returns the largest |h| there, 0 where nobody asks for it.
float encode_rows(const QuantizeFp8&, const CodesOut&, int64_t r0);

}  // namespace gt::cpu
