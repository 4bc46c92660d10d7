// Layouts for checkpoint tests: powers of two, at most 8 ranks, each with ZeRO 0 to 3 if it has replicas.
#pragma once
#include <vector>

namespace gt {

struct EightRanks {
  int tp = 1, pp = 1, dp = 1, zero = 0;
};

// Returns all 50.
inline std::vector<EightRanks> layouts_of_eight() {
  std::vector<EightRanks> out;
  for (int tp = 1; tp <= 8; tp *= 2)
    for (int pp = 1; tp * pp <= 8; pp *= 2)
      for (int dp = 1; tp * pp * dp <= 8; dp *= 2)
        for (int zero = 0; zero <= (dp > 1 ? 3 : 0); ++zero) out.push_back({tp, pp, dp, zero});
  return out;
}

}  // namespace gt
