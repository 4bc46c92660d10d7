// Data position of a run, independent of the layout: a checkpoint resumes at any dp, micro_batch or accumulation.
// Converts from and to JSON text and lists differences; independent of files and checkpoints.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gt {

struct SourceCursor {
  std::string path;        // informative: a moved file with equal content is not a difference
  int64_t bytes = 0;       // of the .bin
  std::string idx_sha256;  // of the .idx
  double weight = 1;       // blend weight, normalized to sum 1
  // Samples drawn so far = epoch * samples per epoch + cursor. Redundant with the ordinal; used as a check.
  int64_t epoch = 0, cursor = 0;
  friend bool operator==(const SourceCursor&, const SourceCursor&) = default;
};

struct DataCursor {
  int64_t consumed_samples = 0;
  std::vector<std::pair<int64_t, int64_t>> skip_windows;  // skipped ordinals [first, last)
  uint64_t seed = 0;
  std::string order;  // epoch, megatron, sequential, mock
  int64_t seq = 0;
  std::string split;
  int64_t num_samples = 0;  // megatron only, else 0
  std::vector<SourceCursor> sources;
  friend bool operator==(const DataCursor&, const DataCursor&) = default;
};

// JSON {"consumed_samples", "skip_windows", "data": {"seed", "order", "seq", "split", "num_samples"?, "sources":
// [...]}}: the loader's part of a checkpoint's state. data_cursor_from_json ignores other keys; kUsage naming the key
// that is absent or invalid.
std::string to_json(const DataCursor&);
DataCursor data_cursor_from_json(const std::string& text);

// Lists the differences between a checkpoint's data stream and this run's, one per line; empty when it can resume.
// consumed_samples and skip_windows are positions, not differences; epoch and cursor are compared only at equal
// ordinals.
std::vector<std::string> differences(const DataCursor& saved, const DataCursor& now);

// Throws kUsage with all differences and remedies, unless `allow_change`.
void require_same_stream(const DataCursor& saved, const DataCursor& now, bool allow_change);

}  // namespace gt
