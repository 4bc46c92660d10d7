// The batch equation as DeepSpeed solves it: global = micro x accumulation x data-parallel ranks, any of them left out.
#pragma once
#include <cstdint>
#include <string>

namespace gt {

struct BatchNumbers {
  int64_t global = 0, micro = 0, accum = 0;  // 0: not given. sequences, sequences, microbatches
};

// Where the number of data-parallel ranks comes from.
struct BatchRanks {
  int64_t tp = 1, pp = 1, cp = 1, dp = 1;
  std::string source;  // "OMPI_COMM_WORLD_RANK": the launcher's variable; "" : started by gpttrain itself
};

// Fills in what is missing: whole divisions first, the check after. Returns "" or what is wrong, in several lines.
std::string solve_batch(BatchNumbers& batch, const BatchRanks& ranks);

}  // namespace gt
