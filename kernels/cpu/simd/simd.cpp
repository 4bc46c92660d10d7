#include "kernels/cpu/simd/simd.h"

#include <atomic>

#include "kernels/cpu/simd/amx_products.h"
#include "kernels/cpu/simd/isa.h"

namespace gt::cpu {
namespace {

std::atomic<PairGemm> substitute{nullptr};
std::atomic<SplitGemm> split_substitute{nullptr};

}  // namespace

void substitute_pair_gemm(PairGemm gemm) { substitute = gemm; }
void substitute_split_gemm(SplitGemm gemm) { split_substitute = gemm; }

TileUse& tile_use() {
  thread_local TileUse use;
  return use;
}

void TileUse::end() {
  if (shape != 0) release();
  shape = 0;
}

HeldTiles::HeldTiles() { ++tile_use().holders; }
HeldTiles::~HeldTiles() {
  if (--tile_use().holders == 0) tile_use().end();
}

#if defined(__x86_64__)
const Simd& simd() {
  switch (current_isa()) {
    case Isa::kScalar: return kSimdScalar;
    case Isa::kAvx2: return kSimdAvx2;
    case Isa::kAvx512: return kSimdAvx512;
    default: return kSimdAvx512Bf16;
  }
}

PairGemm native_pair_gemm() {
  switch (current_isa()) {
    case Isa::kAmx: return pair_gemm_amx;
    case Isa::kAvx512Bf16: return kSimdAvx512Bf16.pair_gemm;
    default: return substitute;
  }
}

SplitGemm native_split_gemm() { return current_isa() == Isa::kAmx ? split_gemm_amx : split_substitute.load(); }
#else
const Simd& simd() { return kSimdScalar; }
PairGemm native_pair_gemm() { return substitute; }
SplitGemm native_split_gemm() { return split_substitute; }
#endif

}  // namespace gt::cpu
