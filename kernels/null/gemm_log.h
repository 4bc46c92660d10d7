// Logs weight GEMMs of a dry run on the null backend, to size the weight copies that a real backend would keep; and
// attention backward shapes, to size its workspace.
#pragma once
#include <span>
#include <vector>

#include "kernels/ops.h"

namespace gt::null {

// While alive, collects this thread's GEMMs on the null backend whose b is a weight (b_version > 0), one per weight and
// orientation. Also collects one attention backward per shape.
class GemmLog {
 public:
  GemmLog();
  ~GemmLog();
  GemmLog(const GemmLog&) = delete;
  GemmLog& operator=(const GemmLog&) = delete;
  std::span<const Gemm> gemms() const { return gemms_; }
  std::span<const AttentionGrad> attention() const { return attention_; }
  void add(const Gemm&);
  void add(const AttentionGrad&);

 private:
  GemmLog* before_;
  std::vector<Gemm> gemms_;
  std::vector<AttentionGrad> attention_;
};

}  // namespace gt::null
