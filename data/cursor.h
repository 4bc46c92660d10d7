// Where a run is in its data: free of any layout, so that a checkpoint resumes at any dp, micro_batch or accumulation.
// Knows neither files nor checkpoints: it is text (JSON) in and out, and a comparison that names every difference.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gt {

struct SourceCursor {
  std::string path;        // informative: a moved file with equal content is no difference
  int64_t bytes = 0;       // of the .bin
  std::string idx_sha256;  // of the .idx
  double weight = 1;       // share of the blend, of sum 1
  int64_t epoch = 0,
          cursor = 0;  // samples given so far = epoch * samples per epoch + cursor; follow from the ordinal, a check
  friend bool operator==(const SourceCursor&, const SourceCursor&) = default;
};

struct DataCursor {
  int64_t consumed_samples = 0;
  std::vector<std::pair<int64_t, int64_t>> skip_windows;  // ordinals [first, last) that were left out
  uint64_t seed = 0;
  std::string order;  // epoch, megatron, sequential, mock
  int64_t seq = 0;
  std::string split;
  int64_t num_samples = 0;  // megatron only, else 0
  std::vector<SourceCursor> sources;
  friend bool operator==(const DataCursor&, const DataCursor&) = default;
};

// {"consumed_samples", "skip_windows", "data": {"seed", "order", "seq", "split", "num_samples"?, "sources": [...]}}:
// the part of a checkpoint's state that is the loader's. from_json ignores other keys; kUsage naming the key that is
// absent or wrong.
std::string to_json(const DataCursor&);
DataCursor data_cursor_from_json(const std::string& text);

// What differs between the stream of a checkpoint and the stream of this run: one line each, empty when the stream goes
// on. consumed_samples and skip_windows are positions, not differences; epoch and cursor are compared when both are at
// one ordinal.
std::vector<std::string> differences(const DataCursor& saved, const DataCursor& now);

// Throws kUsage with all differences and the remedies, unless `allow_change`.
void require_same_stream(const DataCursor& saved, const DataCursor& now, bool allow_change);

}  // namespace gt
