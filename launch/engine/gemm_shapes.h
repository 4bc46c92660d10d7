// The kinds of matrix products of a rank: all that a backend's choice of an algorithm may depend on, found by steps on
// the null backend. A model has some tens, whatever its depth.
#pragma once
#include <string>
#include <vector>

#include "launch/engine/engine.h"

namespace gt {

// No two values have other bytes: kinds are sorted, compared and sent as such.
struct GemmShape {
  struct Operand {
    int64_t rows = 0, cols = 0;
    DType dtype = DType::kF32;
    uint8_t there = 0;
    uint16_t offset = 0;  // of the address, modulo 16
    uint32_t unused = 0;
  };
  Operand a, b, bias, aux, out, dbias;  // of a Gemm, or a GemmFp8
  Epilogue epilogue = Epilogue::kNone;
  uint8_t fp8 = 0, trans_a = 0, trans_b = 0, accumulate = 0;
  uint8_t unused[3] = {};

  friend bool operator<(const GemmShape& x, const GemmShape& y);
};

// Of the training and evaluation of one rank of `shape`, each once, in a fixed order. Sequences of the first
// `kMostLengths` of EngineOptions::lengths are among them.
std::vector<GemmShape> gemm_shapes(const EngineOptions&, const MeshShape& shape, int rank);
constexpr size_t kMostLengths = 16;

// Runs each once on `stream`, on operands of its own made of arbitrary numbers; waits for the device.
void run_products(const std::vector<GemmShape>&, const Backend&, Stream stream);

}  // namespace gt
