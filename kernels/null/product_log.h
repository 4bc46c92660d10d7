// What a dry run on the null backend multiplies with weights, so that copies that a real backend would keep can be
// counted; and its attention backward, for the scratch that it would take.
#pragma once
#include <span>
#include <vector>

#include "kernels/ops.h"

namespace gt::null {

// While it lives, collects the products that this thread asks the null backend for and whose b is a weight
// (b_version > 0): one for each weight and orientation; and one attention backward of each shape.
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
