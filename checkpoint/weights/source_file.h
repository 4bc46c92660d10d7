// Files that the user names as weights, unlike those of checkpoints: opened through symbolic links, as the Hugging Face
// cache stores them, and named as what they are where they hold something else.
#pragma once
#include <cstdint>
#include <string>

#include "checkpoint/store/vfs.h"

namespace gt {

// Returns whether there is something at `path`, a link that leads nowhere included.
bool is_there(const std::string& path);

// Returns the file that a link leads to; `path` itself if it is none. Throws kUsage for a link that leads nowhere or
// to itself.
std::string link_target(const std::string& path);

// Opens for reading, through links. Throws as link_target and File::open.
File open_source(Vfs&, const std::string& path);
// Reads a whole file through links. Throws as open_source and read_file.
std::string read_source(Vfs&, const std::string& path, int64_t limit);

}  // namespace gt
