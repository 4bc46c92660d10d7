// Silent corruption: what several ranks hold must be the same bytes everywhere, half weights must be their rounded
// masters, and a step that is run twice must give the same gradients. A rank that differs has a fault of memory or of a
// processor; the run ends with exit code 16 before anything of it is saved.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "launch/engine/engine.h"

namespace gt {

// One piece of a tensor as one rank holds it. Equal keys: the same piece.
struct ReplicaClaim {
  uint64_t key = 0;
  int64_t elements = 0;
  uint32_t crc = 0;
  int32_t view = 0;  // which of the rank's views it is, for its name
};

// Of weights and optimizer state: a tp-split tensor is a piece of its own on each tp rank, everything else is one piece
// wherever it is held (dp and tp replicas, the two tables of tied embeddings).
std::vector<ReplicaClaim> replica_claims(const std::vector<ShardView>&, const DeviceApi&, Stream);

struct ReplicaVerdict {
  bool equal = true;
  std::vector<int> odd;  // ranks that differ from most; without a majority all holders
  bool majority = false;
  uint64_t key = 0;  // the first such piece, in the order of the lowest odd rank
  int holders = 0;
  int64_t covered = 0, held = 0;  // elements that have a second copy; all
};
// `all`: claims by rank.
ReplicaVerdict judge_replicas(std::span<const std::vector<ReplicaClaim>> all);

// Collective. Returns what share of the state was covered, for the log: "0.53 of the elements have a second copy". On a
// difference every rank throws AgreedError with kHardware, naming step, tensor, ranks, hosts and places.
std::string require_equal_replicas(const Engine&, const DeviceApi&, Stream, int64_t step);

// This rank's masters that its half weights are not the rounding of: the first one's name, "" when there is none.
std::string first_wrong_rounding(const Engine&, const Backend&, Stream);

// By view, after a step: to be held against those of the same step run again.
std::vector<uint32_t> gradient_crcs(const Engine&, const DeviceApi&, Stream);
// Collective. Throws like require_equal_replicas.
void require_equal_gradients(const Engine&, const std::vector<uint32_t>& first, const std::vector<uint32_t>& second,
                             int64_t step);

}  // namespace gt
