namespace gt::cpu {
namespace {
constexpr int kLanes = 4;
}
}  // namespace gt::cpu
#include "kernels/cpu/gemm/gemm_epilogue_rows.h"

namespace gt::cpu {
EpilogueRows epilogue_scalar() { return {gelu_row, gelu_grad_row}; }
}  // namespace gt::cpu
