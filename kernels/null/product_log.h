// Logs weight GEMMs of a dry run on the null backend, to size the weight copies that a real backend would keep; and
// attention backward shapes, to size its workspace.
#pragma once
#include <span>
#include <vector>

#include "kernels/ops.h"

namespace gt::null {

// While alive, collects this thread's GEMMs on the null backend whose b is a weight (b_version > 0), one per weight and
// orientation. Also collects one attention backward per shape.
class ProductLog {
 public:
  ProductLog();
  ~ProductLog();
  ProductLog(const ProductLog&) = delete;
  ProductLog& operator=(const ProductLog&) = delete;
  std::span<const Gemm> products() const { return products_; }
  std::span<const AttentionGrad> attention() const { return attention_; }
  void add(const Gemm&);
  void add(const AttentionGrad&);

 private:
  ProductLog* before_;
  std::vector<Gemm> products_;
  std::vector<AttentionGrad> attention_;
};

}  // namespace gt::null
