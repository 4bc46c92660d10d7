// Layouts with fewer data-parallel replicas, for a job whose remaining hosts lack slots for all of them. tp, pp and the
// global batch stay; microbatch and accumulation are derived again. Pure functions.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launch/config/config.h"

namespace gt {

struct Replicas {
  int64_t dp = 1, micro_batch = 1, grad_accum = 1;
  friend bool operator==(const Replicas&, const Replicas&) = default;
};

// Returns the legal layout with most replicas, at least launch.min_dp and fewer than parallel.dp, that `slots` ranks
// can run; nullopt if there is none. Its microbatch is the largest that is legal and no larger than the config's.
std::optional<Replicas> fewer_replicas(const LoadedConfig&, int slots);

// Returns the flags that, added to the job's command line, select that layout. The global batch is the config's.
std::vector<std::string> replica_flags(const Config&, const Replicas&);

}  // namespace gt
