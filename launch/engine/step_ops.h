// The ops that one rank calls in a training step: every different call with its arguments and how often it comes. From
// a step on the null backend, so for any model and layout on any machine. Rooflines and timings of ops go through it.
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
  std::string what;     // "attn.qkv forward", "mlp.up weight gradient", "norm1"; "" where no parameter is involved
  // Addresses stand for tensors: equal ones are one tensor, the low 8 bits are those of the step. No tensor: nullptr.
  // Streams of random numbers, versions and what else changes no work are taken out.
  OpArgs args;
  // Of an op over a table its segments, which `args` leaves out. No tensor: nullptr; of other addresses the low 8 bits
  // are those of the step.
  std::vector<Segment> segments;
  OpCost cost;        // of one call
  int64_t calls = 0;  // in the step
};

// In the order of their first calls, as from the second step on, when scales of delayed 8 bits are known. Blocks are
// alike: "layers.3.attn.qkv" counts as "attn.qkv".
std::vector<OpCall> step_ops(const EngineOptions&, const MeshShape&, int rank);

// The same with calls as one that look alike in a table and cost the same - their tensors lie otherwise, or are other
// ones of that shape - in the order of their classes.
std::vector<OpCall> by_class(std::vector<OpCall>);

// "65536 x 2304 x 768, bias, gelu" (rows, columns, inner dimension) of products; "[65536, 768]" of others; types.
std::string shape_text(const OpArgs&);

}  // namespace gt
