// Names that exist beside a path that does not: "did you mean runs/first?".
#pragma once
#include <string>
#include <vector>

namespace gt {

// Returns the entry of the path's folder whose name is nearest, as a path; "" when none is near. `suffixes`: also
// compared without them, for prefixes of several files (PREFIX.bin, PREFIX.idx).
std::string near_path(const std::string& path, const std::vector<std::string>& suffixes = {});

// Throws kUsage, with the nearest name, when nothing of this name exists. flag: what gave it, "--load"; wanted: what it
// should have been.
void require_path(const std::string& flag, const std::string& path,
                  const std::string& wanted = "a run directory, its checkpoints folder, or a step");

}  // namespace gt
