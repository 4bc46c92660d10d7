// The checkpoints folder: step names, which steps are complete, setting aside, cleanup. Cheap checks only: seals,
// versions, sizes, hashes of small files. One process at a time; no other rank.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "checkpoint/store/vfs.h"

namespace gt {

// Marker beside the folder of a commit-by-marker attempt, which carries its step's name from the start. While the
// marker exists, a folder without a complete manifest is an attempt, not a step.
std::string attempt_marker(const std::string& step_dir);  // checkpoints/.attempt-step-000001000
bool is_attempt(const std::string& step_dir);

std::string step_name(int64_t step);                          // step-000001000
std::optional<int64_t> step_number(const std::string& name);  // accepts exactly such names

// Number and path of every step in a folder, attempts excepted, newest first; empty when the folder does not exist.
// kIo when it cannot be read.
std::vector<std::pair<int64_t, std::string>> list_steps(const std::string& dir);

struct OpenedStep {
  std::string path;
  std::string text;  // manifest text
  Manifest manifest;
};

// Opens a step. Checks the seal, the version, the step number against the folder's name, presence and size of every
// file, and the hashes of aux files. kDamaged; kUsage for a newer version; IoError.
OpenedStep open_step(Vfs&, const std::string& path);

std::string utc_now();  // 2026-01-31T12:00:00Z
// Renames a step to <step>.<why>-<unix time> and syncs the folder. Returns the new path.
std::string set_aside(Vfs&, const std::string& path, const std::string& why);
// Name of the newest step set aside for that reason; "" when there is none.
std::string newest_aside(const std::string& dir, const std::string& why);
// Renames every step newer than `step` to .abandoned-<time>. Returns one warning per step.
std::vector<std::string> abandon_newer(Vfs&, const std::string& dir, int64_t step);
int64_t bytes_in(const std::string& dir);  // total size of the files directly in it
// Names of leftovers of dead attempts and unfinished deletions, including links with such names.
std::vector<std::string> list_attempts(const std::string& dir);
std::vector<std::string> clean_attempts(Vfs&, const std::string& dir);
void remove_attempt(Vfs&, const std::string& dir, const std::string& name);  // removes one leftover
// Step numbers and names of everything set aside, newest step first.
std::vector<std::pair<int64_t, std::string>> list_aside(const std::string& dir);

}  // namespace gt
