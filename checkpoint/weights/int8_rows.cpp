#include "checkpoint/weights/int8_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gt {

Int8Rows quantize_rows(const std::vector<float>& w, int64_t rows) {
  Int8Rows out;
  out.values.resize(w.size());
  out.scale.resize(static_cast<size_t>(rows), 1.0f);
  const size_t cols = rows > 0 ? w.size() / static_cast<size_t>(rows) : 0;
  for (size_t r = 0; r < out.scale.size(); ++r) {
    const float* row = w.data() + r * cols;
    float most = 0;
    for (size_t c = 0; c < cols; ++c) most = std::max(most, std::fabs(row[c]));
    if (most > 0) out.scale[r] = std::max(most / 127, std::numeric_limits<float>::min());
    for (size_t c = 0; c < cols; ++c)
      out.values[r * cols + c] = std::clamp(std::nearbyint(row[c] / out.scale[r]), -127.0f, 127.0f);
  }
  return out;
}

std::vector<float> restore_rows(const Int8Rows& q) {
  std::vector<float> out(q.values.size());
  const size_t cols = q.scale.empty() ? 0 : out.size() / q.scale.size();
  for (size_t r = 0; r < q.scale.size(); ++r)
    for (size_t c = 0; c < cols; ++c) out[r * cols + c] = q.values[r * cols + c] * q.scale[r];
  return out;
}

}  // namespace gt
