#include "kernels/cpu/table.h"

#include "kernels/cpu/kernels.h"

namespace gt::cpu {
namespace {
constexpr OpTable kOps{.name = "cpu",
#define X(entry, Args, ...) .entry = entry,
                       GT_OPS(X)
#undef X
};
GT_COMPLETE_TABLE(kOps);
}  // namespace

const OpTable kTable = kOps;
}  // namespace gt::cpu
