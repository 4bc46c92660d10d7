// Files of caches. A cache is untrusted input: whoever can write it decides what later runs read. So it is used only if
// this user (or root) alone can have written it, and its readers still check every value. Independent of what a cache
// holds.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/core/files.h"

namespace gt {

// Returns $XDG_CACHE_HOME/gpttrain, else ~/.cache/gpttrain. "" without both variables: nothing is stored then, and
// nothing is read from folders that users share, such as /tmp.
std::string cache_folder();

// Returns why files of `folder` are not used: it belongs to another user, group or others may write it, or everybody
// may rename it. "" for a folder that may be used, and for one that does not exist.
std::string folder_problem(const std::string& folder);
// Makes a missing folder and its missing parents, with mode 0700; returns why its files are not used, else "".
std::string make_cache_folder(const std::string& folder);

// Result of opening a file of a cache. No descriptor and no problem: there is no such file.
struct CachedFile {
  Fd fd;
  std::string problem;     // "/x/y: belongs to user 1001"
  bool by_others = false;  // the problem is its owner or mode
};
// Opens a regular file that no other user can have written; follows no symbolic link in its last component.
CachedFile open_own(const std::string& path);
// Returns whether a new file in `folder` is this user's own: false on file systems that keep no owners and modes (CIFS,
// exFAT, some of FUSE), where the writer of a file is unknown. True where none can be made.
bool keeps_owners(const std::string& folder);
// open_own() of a file in a folder without a folder_problem().
CachedFile open_cached(const std::string& path);
// Returns the content of open_cached(), "" where there is none; `problem` (optional) receives why a file was refused.
std::string read_cached(const std::string& path, int64_t limit, std::string* problem = nullptr);

// Creates a new file for writing, mode 0600. Throws kIo, also if the path exists.
Fd create_own(const std::string& path);
// Replaces a file of a cache by rename; makes its folder. Returns why that failed, else "".
std::string write_cached(const std::string& path, std::string_view content);

}  // namespace gt
