// GEMM shapes of a rank: everything on which a backend's choice of algorithm may depend. Collected by steps on the null
// backend. A model has a few dozen, whatever its depth.
#pragma once
#include <string>
#include <vector>

#include "launch/engine/engine.h"

namespace gt {

// Key of a GEMM. Equal keys have equal bytes: they are sorted, compared and sent bytewise.
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

// Returns the GEMM shapes of training and evaluation on one rank of `shape`, without duplicates, in a fixed order.
// Covers the first `kMostLengths` sequence lengths of EngineOptions::lengths.
std::vector<GemmShape> gemm_shapes(const EngineOptions&, const MeshShape& shape, int rank);
constexpr size_t kMostLengths = 16;

// Runs each GEMM once on `stream`, on operands with arbitrary values. Synchronizes with the device.
void run_gemms(const std::vector<GemmShape>&, const Backend&, Stream stream);

}  // namespace gt
