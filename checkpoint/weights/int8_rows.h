// Symmetric per-row int8 quantization of matrices, for int8 export and import.
#pragma once
#include <cstdint>
#include <vector>

namespace gt {

struct Int8Rows {
  std::vector<float> values;  // integers in [-127, 127], row-major as the matrix
  std::vector<float> scale;   // [rows]; matrix = values * scale
};

// Quantizes with scale = max |w| / 127 per row (1 for a zero row) and values = w / scale, round to nearest even. Error
// per element: at most scale / 2. Requires: w finite.
Int8Rows quantize_rows(const std::vector<float>& w, int64_t rows);
std::vector<float> restore_rows(const Int8Rows&);

}  // namespace gt
