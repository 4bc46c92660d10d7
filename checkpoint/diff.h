// Two checkpoints compared as models: by logical tensor, whatever layouts wrote them. One tensor of each in memory at a
// time.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/vfs.h"

namespace gt {

struct TensorDiff {
  std::string name;
  std::string misfit;    // "only in A", "f32 [4, 4] against f32 [4, 8]"; empty: the elements were compared
  double max_abs = 0;    // infinite where one side is not finite and the bits differ
  double relative = 0;   // max_abs / the largest magnitude of A
  uint64_t max_ulp = 0;  // representable f32 between the two, at most
  int64_t different = 0, elements = 0;
  int64_t first = -1;  // row-major place of the first element whose bits differ
  float a = 0, b = 0;  // there
};

struct DiffReport {
  int64_t compared = 0;             // tensors on both sides
  std::vector<TensorDiff> tensors;  // that differ in a bit, the worst first
  std::vector<std::string> state;   // "step: 4 | 8", of the trainer's state
  bool within = true;               // no misfit, no relative difference above the tolerance, same state
};

// State that may differ between equal trainings (names of runs, seconds, micro batch) is not compared.
DiffReport diff_steps(Vfs&, const std::string& a, const std::string& b, double tolerance);

}  // namespace gt
