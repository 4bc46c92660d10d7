// What a dry run on the null backend multiplies with weights, so that copies that a real backend would keep can be
// counted.
#pragma once
#include <span>
#include <vector>

#include "kernels/ops.h"

namespace gt::null {

// While it lives, collects the products that this thread asks the null backend for and whose b is a weight
// (b_version > 0): one for each weight and orientation.
class ProductLog {
 public:
  ProductLog();
  ~ProductLog();
  ProductLog(const ProductLog&) = delete;
  ProductLog& operator=(const ProductLog&) = delete;
  std::span<const Gemm> products() const { return products_; }
  void add(const Gemm&);

 private:
  ProductLog* before_;
  std::vector<Gemm> products_;
};

}  // namespace gt::null
