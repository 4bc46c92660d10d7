// What is done with a computed tile of a GEMM while it is in cache: bias, GELU or its gradient, accumulation, rounding,
// column sums and sums of squares.
#pragma once
#include "kernels/cpu/simd/simd.h"
#include "kernels/ops.h"

namespace gt::cpu {

struct GemmTile {
  int64_t row, col, rows, cols;
};

struct GemmResult {
  const Gemm* op = nullptr;
  int64_t m = 0, n = 0;
  const float* bias = nullptr;
  bool staged = false;            // tiles are computed dense in f32 scratch and written out from there
  bool has_16bit_result = false;  // out or aux is 16-bit
  bool streams = false;           // staged f32 tiles are written past the caches
  float* sums = nullptr;          // column sums of out over blocks of kSumBlock rows: [blocks, n]
  double* squares = nullptr;      // sums of squares of blocks of out: [square_rows(), square_columns()]
  const Simd* simd = nullptr;

  int64_t sum_blocks() const;
  // Where a tile that is not staged is computed; rows are n apart.
  float* in_place(int64_t row, int64_t col) const;
  // Adds the bias to a computed tile z, rows `ldc` apart.
  void add_bias(const GemmTile& t, float* z, int64_t ldc) const;
  // Epilogue and sums of a computed tile, bias added. Of a staged one: its dense result and memory for a row.
  void complete(const GemmTile& t, float* dense, float* line) const;
  // Adds the sums of blocks to dbias, and those of squares.
  void combine_sums(Stream s) const;
  // Blocks of kSquare rows and columns, which every tile consists of.
  int64_t square_rows() const { return (m + kSquare - 1) / kSquare; }
  int64_t square_columns() const { return (n + kSquare - 1) / kSquare; }

 private:
  static constexpr int64_t kSquare = 32;
  void square(const GemmTile& t, const float* z, int64_t ldz) const;
  void finish(const GemmTile& t) const;
  void finish_dense(const GemmTile& t, const float* dense) const;
  void finish_rounded(const GemmTile& t, float* dense, float* line) const;
};

}  // namespace gt::cpu
