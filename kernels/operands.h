// What an op says of itself, once: the operands of its arguments and its line in GT_OPS (ops.h). Costs, timers, the
// watch for values that are not finite, recordings of a step and test cases are derived from it.
#pragma once
#include "kernels/core/tensor.h"

namespace gt {

// kIn: values that the op reads; kOut: that it writes; kInOut: that it adds to, or works on in place. kControl: what
// steers or judges the op and belongs to no pass over data: ids, positions, scales, statistics that may be infinite,
// scalars of a step. Such an operand counts no bytes, and nobody looks for NaN in it.
enum class OperandRole : uint8_t { kIn, kOut, kInOut, kControl };
constexpr bool reads(OperandRole r) { return r == OperandRole::kIn || r == OperandRole::kInOut; }
constexpr bool writes(OperandRole r) { return r == OperandRole::kOut || r == OperandRole::kInOut; }

// Casts at AMP O1: a tensor-core op, one that stays f32, one that takes what it is given.
enum class AmpClass : uint8_t { kLow, kHigh, kKeep };
// The pass that calls an op. kNeither: both, or that of the op before it; kByArguments: the arguments' direction().
enum class Direction : uint8_t { kForward, kBackward, kNeither, kByArguments };
// What a table of a step's time is cut into.
enum class OpClass : uint8_t { kGemm, kAttention, kLoss, kNorm, kOptimizer, kEmbedding, kElementwise, kNumOpClasses };
// The module whose time an op takes: that of its parameter, or of the last op that had one; or a leaf beside that.
enum class Leaf : uint8_t { kOfParameter, kAttentionCore, kActivation, kLoss };
// How costs follow from operands. kPass: each is read or written once, in any graph; kPart: the same, and nothing in a
// graph whose fusions are complete, as part of the kernel beside it; kOwn: op_cost.cpp has a function.
enum class CostRule : uint8_t { kPass, kPart, kOwn };

struct OpInfo {
  const char* name;  // the table's entry
  AmpClass amp;
  Direction direction;
  OpClass kind;
  Leaf leaf;
  CostRule cost;
};

// Passes operands to f(const char* name, tensor, OperandRole).
template <class F>
class OperandVisitor {
 public:
  constexpr explicit OperandVisitor(F& f) : f_(f) {}
  template <class T>
  constexpr OperandVisitor& operand(const char* name, T& t, OperandRole role) {
    f_(name, t, role);
    return *this;
  }
  template <class T>
  constexpr OperandVisitor& in(const char* name, T& t) { return operand(name, t, OperandRole::kIn); }
  template <class T>
  constexpr OperandVisitor& out(const char* name, T& t, bool adds = false) {
    return operand(name, t, adds ? OperandRole::kInOut : OperandRole::kOut);
  }
  template <class T>
  constexpr OperandVisitor& control(const char* name, T& t) { return operand(name, t, OperandRole::kControl); }
  // Those of a member.
  template <class Args>
  constexpr OperandVisitor& all(Args& member) {
    Args::operands(member, *this);
    return *this;
  }

 private:
  F& f_;
};

// In an argument struct: its tensors, `o` being the arguments. The first that is a parameter, or the gradient of one,
// gives the call its name. Empty tensors are visited too.
#define GT_OPERANDS(...)                              \
  template <class Self, class Visitor>                \
  static constexpr void operands(Self& o, Visitor& v) { \
    v __VA_ARGS__;                                    \
  }

// Calls f(const char* name, Tensor&, OperandRole) on every tensor of an op's arguments; const Tensor& if those are const.
template <class Args, class F>
constexpr void each_operand(Args& args, F f) {
  OperandVisitor<F> visitor(f);
  Args::operands(args, visitor);
}

}  // namespace gt
