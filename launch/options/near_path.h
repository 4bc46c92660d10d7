// Suggestions for paths that do not exist: "did you mean runs/first?".
#pragma once
#include <string>
#include <vector>

namespace gt {

// Returns the sibling of `path` with the most similar name, as a path; "" if none is similar. Names are also compared
// without `suffixes`, for prefixes of several files (PREFIX.bin, PREFIX.idx).
std::string near_path(const std::string& path, const std::vector<std::string>& suffixes = {});

// Throws kUsage with the most similar name if `path` does not exist. `flag`: the option it came from, such as "--load".
// `expected`: what the path must be, for the message.
void require_path(const std::string& flag, const std::string& path,
                  const std::string& expected = "a run directory, its checkpoints folder, or a step");

}  // namespace gt
