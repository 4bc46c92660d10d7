// Detects silent data corruption. Replicas must be bitwise identical on all ranks, 16-bit weights must be their rounded
// masters, and a repeated step must yield the same gradients. A rank that differs has faulty memory or a faulty
// processor. The run then ends with exit code 16 before any of its state is saved.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "launch/engine/engine.h"

namespace gt {

// Checksum of one shard as held by one rank. Equal keys identify the same shard.
struct ReplicaClaim {
  uint64_t key = 0;
  int64_t elements = 0;
  uint32_t crc = 0;
  int32_t view = 0;  // index of the rank's view, for its name
};

// Returns the checksums of weights and optimizer state. A split tensor has one shard per slice. Everything else is
// one shard wherever it is held in the same dtype (dp and tp replicas, both tables of tied embeddings).
std::vector<ReplicaClaim> replica_claims(const std::vector<ShardView>&, const DeviceApi&, Stream);

struct ReplicaVerdict {
  bool equal = true;
  std::vector<int> odd;  // ranks that differ from the majority; without a majority all holders
  bool majority = false;
  uint64_t key = 0;  // first differing shard, in the order of the lowest odd rank
  int holders = 0;
  int64_t covered = 0, held = 0;  // elements with a second copy; all elements
};
// `all`: checksums by rank.
ReplicaVerdict compare_replicas(std::span<const std::vector<ReplicaClaim>> all);

// Collective. Returns the fraction of the state that has replicas, for the log: "replicas are equal: 53 % of weights
// and optimizer state have a second copy". On a difference every rank throws AgreedError with kHardware, naming step,
// tensor, ranks, hosts and rank coordinates.
std::string require_equal_replicas(const Engine&, const DeviceApi&, Stream, int64_t step);

// Returns the first 16-bit weight of this rank that is not its rounded master, as text; "" if there is none. Weights
// that are fake-quantized after rounding are not checked.
std::string first_wrong_rounding(const Engine&, const Backend&, Stream);

// Returns checksums of the gradients by view, after a step, to compare with those of the same step run again.
std::vector<uint32_t> gradient_crcs(const Engine&, const DeviceApi&, Stream);
// Collective. Throws like require_equal_replicas.
void require_equal_gradients(const Engine&, const std::vector<uint32_t>& first, const std::vector<uint32_t>& second,
                             int64_t step);

}  // namespace gt
