// Ops that one rank calls in a training step: every distinct call with its arguments and count. Collected by a step on
// the null backend, so for any model and layout on any machine. Input of rooflines and op timings.
#pragma once
#include <string>
#include <variant>
#include <vector>

#include "kernels/op_cost.h"
#include "launch/engine/engine.h"

namespace gt {

// Arguments of any op.
#define X(entry, Args, ...) , Args
using OpArgs = std::variant<std::monostate GT_OPS(X)>;
#undef X

struct OpCall {
  const char* op = "";  // the table's entry
  std::string what;     // "attn.qkv forward", "mlp.up weight gradient", "norm1"; "" without a parameter
  bool update = false;  // after the pipeline: gradient norm, optimizer, weights of the next step
  // Addresses identify tensors: equal ones are one tensor, and the low 8 bits are those of the step. No tensor:
  // nullptr. Random streams, versions and other values that do not affect the work are cleared.
  OpArgs args;
  // Segments of an op over a table, which `args` omits. No tensor: nullptr; of other addresses the low 8 bits are those
  // of the step.
  std::vector<Segment> segments;
  OpCost cost;        // of one call
  int64_t calls = 0;  // in the step
  int64_t packs = 0;  // of these, the first with a weight in the step: backends may pack it then
};

// Returns the calls in the order of their first occurrence, as from the second step on, when delayed FP8 scales are
// known. Blocks are merged: "layers.3.attn.qkv" counts as "attn.qkv".
std::vector<OpCall> step_ops(const EngineOptions&, const MeshShape&, int rank);

// Merges calls with equal table text and cost (their tensors differ only in address or identity), in the order of their
// classes.
std::vector<OpCall> by_class(std::vector<OpCall>);

// Returns "65536 x 2304 x 768, bias, gelu" (rows, columns, inner dimension) for GEMMs and "[65536, 768]" for other ops,
// with dtypes.
std::string shape_text(const OpArgs&);

}  // namespace gt
