// Compares two checkpoints as models, by logical tensor, whatever layouts wrote them. Holds one tensor of each in
// memory at a time.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/store/vfs.h"

namespace gt {

struct TensorDiff {
  std::string name;
  std::string misfit;    // "only in A", "f32 [4, 4] against f32 [4, 8]"; empty: the elements were compared
  double max_abs = 0;    // infinite where one side is not finite and the bits differ
  double relative = 0;   // max_abs / max |A|
  uint64_t max_ulp = 0;  // largest distance in representable f32 values
  int64_t different = 0, elements = 0;
  int64_t first = -1;  // row-major index of the first element whose bits differ
  float a = 0, b = 0;  // values at `first`
};

struct DiffReport {
  int64_t compared = 0;             // tensors on both sides
  std::vector<TensorDiff> tensors;  // bitwise different tensors, worst first
  std::vector<std::string> state;   // "step: 4 | 8", differences in the trainer state
  bool within = true;               // no mismatch, no relative difference above the tolerance, same state
};

// Skips state that may differ between identical trainings (run names, seconds, micro batch).
DiffReport diff_steps(Vfs&, const std::string& a, const std::string& b, double tolerance);

}  // namespace gt
