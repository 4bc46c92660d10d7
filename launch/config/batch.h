// DeepSpeed's batch equation: global = micro × accumulation × data-parallel ranks. Missing terms are derived.
#pragma once
#include <cstdint>
#include <string>

namespace gt {

struct BatchNumbers {
  int64_t global = 0, micro = 0, accum = 0;  // sequences, sequences, microbatches; 0: not given
};

// Layout that gives the number of data-parallel ranks.
struct BatchRanks {
  int64_t tp = 1, pp = 1, cp = 1, dp = 1;
  std::string source;  // launcher variable that set the world size; "": started by gpttrain itself
};

// Derives the missing terms by exact division, then checks the equation. Returns "" or the error, possibly on several
// lines.
std::string solve_batch(BatchNumbers& batch, const BatchRanks& ranks);

}  // namespace gt
