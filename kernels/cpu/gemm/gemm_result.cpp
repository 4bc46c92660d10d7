#include "kernels/cpu/gemm/gemm_result.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/cpu/context.h"
#include "kernels/cpu/simd/cast_16bit.h"

namespace gt::cpu {

int64_t GemmResult::sum_blocks() const { return (m + kSumBlock - 1) / kSumBlock; }

float* GemmResult::in_place(int64_t row, int64_t col) const {
  return (op->epilogue == Epilogue::kGelu ? op->aux : op->out).as<float>() + row * n + col;
}

void GemmResult::add_bias(const GemmTile& t, float* z, int64_t ldc) const {
  for (int64_t r = 0; bias != nullptr && r < t.rows; ++r) simd->add(z + r * ldc, bias + t.col, z + r * ldc, t.cols);
}

// A tile computed in place.
void GemmResult::finish(const GemmTile& t) const {
  if (op->epilogue == Epilogue::kNone) return;
  for (int64_t r = t.row; r < t.row + t.rows; ++r) {
    float *aux = op->aux.as<float>() + r * n + t.col, *out = op->out.as<float>() + r * n + t.col;
    op->epilogue == Epilogue::kGelu ? gelu(*simd, aux, out, t.cols) : gelu_grad(*simd, aux, out, t.cols);
  }
}

// Sums of squares of the blocks of a tile z, rows `ldz` apart. A staged one is written past the caches with them.
void GemmResult::square(const GemmTile& t, const float* z, int64_t ldz) const {
  for (int64_t r = 0; r < t.rows; r += kSquare)
    for (int64_t c = 0; c < t.cols; c += kSquare) {
      const int64_t row = t.row + r, col = t.col + c, rows = std::min(kSquare, t.rows - r);
      const int64_t cols = std::min(kSquare, t.cols - c);
      const float* block = z + r * ldz + c;
      const double sum = streams ? simd->stream_block(block, ldz, rows, cols, op->out.as<float>() + row * n + col, n)
                                 : simd->square_block(block, ldz, rows, cols);
      if (squares != nullptr) squares[row / kSquare * square_columns() + col / kSquare] = sum;
    }
  if (streams) simd->complete_streams();
}

// A staged tile; out and aux are f32.
void GemmResult::finish_dense(const GemmTile& t, const float* dense) const {
  if (streams) return square(t, dense, t.cols);
  const size_t bytes = static_cast<size_t>(t.cols) * sizeof(float);
  for (int64_t r = 0; r < t.rows; ++r) {
    const float* z = dense + r * t.cols;
    const int64_t at = (t.row + r) * n + t.col;
    float* out = op->out.as<float>() + at;
    if (op->epilogue == Epilogue::kGelu) {
      std::memcpy(op->aux.as<float>() + at, z, bytes);
      gelu(*simd, z, out, t.cols);
    } else if (op->accumulate) {
      for (int64_t c = 0; c < t.cols; ++c) out[c] += z[c];
    } else {
      std::memcpy(out, z, bytes);
      if (op->epilogue == Epilogue::kGeluGrad) gelu_grad(*simd, op->aux.as<float>() + at, out, t.cols);
    }
  }
}

// The same when out or aux is 16-bit.
void GemmResult::finish_rounded(const GemmTile& t, float* dense, float* line) const {
  const Gemm& g = *op;
  const Simd& f = *simd;
  const auto put = [&](const Tensor& to, int64_t at, const float* z) {
    if (to.dtype == DType::kF32) {
      std::memcpy(to.as<float>() + at, z, static_cast<size_t>(t.cols) * sizeof(float));
    } else {
      write(f, to, at, t.cols, z);
    }
  };
  const bool bf16_gelu = g.epilogue != Epilogue::kNone && g.out.dtype == DType::kBF16 && g.aux.dtype == DType::kBF16;
  for (int64_t r = 0; r < t.rows; ++r) {
    float* z = dense + r * t.cols;
    const int64_t at = (t.row + r) * n + t.col;
    if (bf16_gelu) {
      uint16_t *aux = g.aux.as<uint16_t>() + at, *out = g.out.as<uint16_t>() + at;
      g.epilogue == Epilogue::kGelu ? f.gelu_bf16(z, aux, out, t.cols) : f.gelu_grad_bf16(aux, z, out, t.cols);
      continue;
    }
    if (g.epilogue == Epilogue::kGelu) {
      put(g.aux, at, z);  // GELU of the stored (rounded) value, so recomputing it from aux is bitwise identical
      gelu(f, read(f, g.aux, at, t.cols, line), z, t.cols);
    } else if (g.epilogue == Epilogue::kGeluGrad) {
      gelu_grad(f, read(f, g.aux, at, t.cols, line), z, t.cols);
    }
    if (g.accumulate) f.add(read(f, g.out, at, t.cols, line), z, z, t.cols);
    put(g.out, at, z);
  }
  if (bf16_gelu) f.complete_streams();
}

void GemmResult::complete(const GemmTile& t, float* dense, float* line) const {
  if (!staged) {
    finish(t);
    if (squares != nullptr) square(t, in_place(t.row, t.col), n);
  } else if (has_16bit_result) {
    finish_rounded(t, dense, line);
  } else {
    finish_dense(t, dense);
  }
  if (sums == nullptr) return;
  for (int64_t r = t.row; r < t.row + t.rows; r += kSumBlock)
    column_sums(*simd, op->out, r * n + t.col, n, std::min(kSumBlock, t.row + t.rows - r),
                sums + r / kSumBlock * n + t.col, t.cols, false);
}

void GemmResult::combine_sums(Stream s) const {
  if (squares != nullptr)
    *op->squares.as<double>() = std::accumulate(squares, squares + square_rows() * square_columns(), 0.0);
  if (sums == nullptr) return;
  parallel_for(s, n, 1024, [&](int64_t begin, int64_t end, int) {
    edit(*simd, op->dbias, begin, end - begin, op->accumulate_dbias, [&](float* out, int64_t c, int64_t count) {
      simd->column_sums(sums + begin + c, n, sum_blocks(), out, count, op->accumulate_dbias);
    });
  });
}

}  // namespace gt::cpu
