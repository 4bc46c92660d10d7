// Records of `gpttrain bench`, a line each, over releases and machines: what a new one is held against.
#pragma once
#include <optional>
#include <string>

namespace gt {

struct EarlierBench {
  std::string time, git;
  double tokens_per_second = 0;
};

// The last record of `path` that was made on such a device, with as many threads and ranks, of the same config; nothing
// where there is none, or no file. Keys that one of the two configs lacks are of another version and do not count, nor
// do log.* and checkpoint.*, of which a bench does nothing. `record`: bench_json(). kDamaged names a line that is no
// record.
std::optional<EarlierBench> last_alike(const std::string& path, const std::string& record);

// Before minutes of measuring: can lines be added to it, and are those in it records? kIo, kDamaged.
void require_history(const std::string& path);

// Adds the record as a line and returns what to say: "1.013 times the 121.5k tokens/s of 2026-11-20T10:00:00Z (git …)".
std::string add_to_history(const std::string& path, const std::string& record);

}  // namespace gt
