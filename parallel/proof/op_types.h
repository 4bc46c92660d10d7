// Applies a typing rule (op_rules.h) to the operands of one call.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/tensor.h"
#include "parallel/proof/layout_type.h"

namespace gt::proof {

// A tensor of a call. Read: its type. Written: its type before, where the op adds to it.
struct Operand {
  std::string_view name;
  Tensor tensor;
  LayoutType type;
  bool adds = false;
};

// What a call is found to violate: "gemm: b is equal on every rank along tp, a is split along dimension 1".
struct Violation {
  std::string text;
};

// Types of the written operands, in their order. `along`: axes of more than one rank. Throws Violation.
// created(written operand, letter's dimension): type of a dimension that no read operand has.
std::vector<LayoutType> result_types(std::string_view op, std::string_view rule, const std::vector<Operand>& read,
                                     const std::vector<Operand>& written, const std::vector<Along>& along,
                                     bool (*created)(const Operand&, Along, int dim));

}  // namespace gt::proof
