// Self-description of ops: the operands of an argument struct and its entry in GT_OPS (ops.h). Costs, timers, the
// non-finite watch, step recordings and test cases are derived from it.
#pragma once
#include "kernels/core/tensor.h"

namespace gt {

// kIn: read; kOut: written; kInOut: accumulated into or updated in place. kControl: metadata outside the data flow:
// ids, positions, scales, statistics that may be infinite, per-step scalars. Control operands count no bytes and are
// exempt from NaN checks.
enum class OperandRole : uint8_t { kIn, kOut, kInOut, kControl };
constexpr bool reads(OperandRole r) { return r == OperandRole::kIn || r == OperandRole::kInOut; }
constexpr bool writes(OperandRole r) { return r == OperandRole::kOut || r == OperandRole::kInOut; }

// AMP O1 casting: tensor-core op, f32-only op, or dtype-preserving op.
enum class AmpClass : uint8_t { kLow, kHigh, kKeep };
// The pass that calls an op. kNeither: both, or that of the preceding op; kByArguments: the arguments' direction().
enum class Direction : uint8_t { kForward, kBackward, kNeither, kByArguments };
// Rows of the step-time breakdown.
enum class OpClass : uint8_t { kGemm, kAttention, kLoss, kNorm, kOptimizer, kEmbedding, kElementwise, kNumOpClasses };
// Module that an op's time is attributed to: that of its parameter or of the last op with one; or a separate leaf.
enum class Leaf : uint8_t { kOfParameter, kAttentionCore, kActivation, kLoss };
// How cost is derived from operands. kPass: each operand read or written once, fused or not; kPart: the same, but 0 in
// a fully fused graph, as part of an adjacent kernel; kOwn: op_cost.cpp has a function.
enum class CostRule : uint8_t { kPass, kPart, kOwn };

struct OpInfo {
  const char* name;  // entry in the op table
  AmpClass amp;
  Direction direction;
  OpClass kind;
  Leaf leaf;
  CostRule cost;
};

// Calls f(const char* name, tensor, OperandRole) for each operand.
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
  constexpr OperandVisitor& in(const char* name, T& t) {
    return operand(name, t, OperandRole::kIn);
  }
  template <class T>
  constexpr OperandVisitor& out(const char* name, T& t, bool adds = false) {
    return operand(name, t, adds ? OperandRole::kInOut : OperandRole::kOut);
  }
  template <class T>
  constexpr OperandVisitor& control(const char* name, T& t) {
    return operand(name, t, OperandRole::kControl);
  }
  // Lists the operands of a member struct.
  template <class Args>
  constexpr OperandVisitor& all(Args& member) {
    Args::operands(member, *this);
    return *this;
  }

 private:
  F& f_;
};

// Declares the tensors of an argument struct; `o` is the arguments. The first one that is a parameter or its gradient
// names the call. Empty tensors are visited too.
#define GT_OPERANDS(...)                                \
  template <class Self, class Visitor>                  \
  static constexpr void operands(Self& o, Visitor& v) { \
    v __VA_ARGS__;                                      \
  }

// Calls f(const char* name, Tensor&, OperandRole) for every tensor operand; const Tensor& for const arguments.
template <class Args, class F>
constexpr void each_operand(Args& args, F f) {
  OperandVisitor<F> visitor(f);
  Args::operands(args, visitor);
}

}  // namespace gt
