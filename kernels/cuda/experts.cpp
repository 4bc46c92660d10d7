// Ops of routed layers, which this backend does not have: config_check.cpp refuses experts on GPUs before a run starts.
#include "kernels/cuda/table.h"

namespace gt::cuda {

#define GT_NOT_BUILT(entry, Args)                                                              \
  void entry(const Args&, Stream) {                                                            \
    fail(Exit::kUsage, "cuda " #entry ": experts on CUDA are not built; use device.kind cpu"); \
  }
GT_NOT_BUILT(route, Route)
GT_NOT_BUILT(route_grad, RouteGrad)
GT_NOT_BUILT(balance_loss, BalanceLoss)
GT_NOT_BUILT(group_rows, GroupRows)
GT_NOT_BUILT(send_rows, SendRows)
GT_NOT_BUILT(receive_rows, ReceiveRows)
GT_NOT_BUILT(grouped_gemm, GroupedGemm)
GT_NOT_BUILT(grouped_gemm_grad, GroupedGemmGrad)
GT_NOT_BUILT(expert_activate, ExpertActivate)
GT_NOT_BUILT(expert_activate_grad, ExpertActivateGrad)
GT_NOT_BUILT(combine_rows, CombineRows)
#undef GT_NOT_BUILT

}  // namespace gt::cuda
