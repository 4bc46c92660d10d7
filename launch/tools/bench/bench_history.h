// History of `gpttrain bench` records over releases and machines, one per line, for comparison with new ones.
#pragma once
#include <optional>
#include <string>

namespace gt {

struct EarlierBench {
  std::string time, git;
  double tokens_per_second = 0;
};

// Returns the last record of `path` with the same device, instruction set, threads, ranks and config as `record` (a
// bench_json()); nullopt if there is none, or no file.
// Config keys that only one side has come from another version and are ignored, as are log.* and checkpoint.*, which do
// not affect a bench. Throws kDamaged naming a malformed line.
std::optional<EarlierBench> last_comparable(const std::string& path, const std::string& record);

// Checks before a long measurement that `path` can be appended to and holds valid records. Throws kIo or kDamaged.
void require_history(const std::string& path);

// Appends the record and returns the comparison text: "1.013 times the 121.5k tokens/s of 2026-11-20T10:00:00Z (git
// …)".
std::string add_to_history(const std::string& path, const std::string& record);

}  // namespace gt
