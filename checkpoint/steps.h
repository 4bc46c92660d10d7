// The checkpoints folder: names of steps, which of them are whole, what is set aside, what is removed. Cheap looks
// only: seals, versions, sizes, hashes of small files. One process at a time; no other rank.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/vfs.h"

namespace gt {

// Beside the folder of an attempt that has its step's name from the start: without a whole manifest that is no step.
std::string attempt_marker(const std::string& step_dir);  // checkpoints/.attempt-step-000001000
bool is_attempt(const std::string& step_dir);

std::string step_name(int64_t step);                          // step-000001000
std::optional<int64_t> step_number(const std::string& name);  // of exactly such a name

// Number and path of every step in a folder, attempts excepted, newest first; empty when there is no such folder. kIo
// when it cannot be read.
std::vector<std::pair<int64_t, std::string>> list_steps(const std::string& dir);

struct OpenedStep {
  std::string path;
  std::string text;  // of the manifest
  Manifest manifest;
};

// Checks the seal, the version, the step against the folder's name, every file's presence and size, the hashes of aux
// files. kDamaged; kUsage for a newer version; IoError.
OpenedStep open_step(Vfs&, const std::string& path);

std::string utc_now();  // 2026-01-31T12:00:00Z
// Renames a step to <step>.<why>-<unix time> and syncs the folder. Returns the new path.
std::string set_aside(Vfs&, const std::string& path, const std::string& why);
// Name of the newest step that was set aside for that reason; "" when there is none.
std::string newest_aside(const std::string& dir, const std::string& why);
// Every step newer than `step`, as .abandoned-<time>. Returns one warning each.
std::vector<std::string> abandon_newer(Vfs&, const std::string& dir, int64_t step);
int64_t bytes_in(const std::string& dir);  // of the files right in it
// Names of what dead attempts and half-done deletions left behind; links of such names too.
std::vector<std::string> list_attempts(const std::string& dir);
std::vector<std::string> clean_attempts(Vfs&, const std::string& dir);
void remove_attempt(Vfs&, const std::string& dir, const std::string& name);  // one of them
// Names of the steps that were set aside, with their numbers, newest step first.
std::vector<std::pair<int64_t, std::string>> list_aside(const std::string& dir);

}  // namespace gt
