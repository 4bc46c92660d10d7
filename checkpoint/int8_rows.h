// Symmetric int8 of matrices, a scale a row: what an int8 export stores and an import takes back.
#pragma once
#include <cstdint>
#include <vector>

namespace gt {

struct Int8Rows {
  std::vector<float> values;  // whole numbers -127..127, row-major as the matrix
  std::vector<float> scale;   // [rows]: matrix = values * scale
};

// scale = max |w| / 127 of a row, 1 for a row of zeros; values = w / scale, to nearest even. The error of an element is
// at most scale / 2. w finite.
Int8Rows quantize_rows(const std::vector<float>& w, int64_t rows);
std::vector<float> restore_rows(const Int8Rows&);

}  // namespace gt
