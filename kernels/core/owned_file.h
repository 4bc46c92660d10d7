// Named files that must not outlive their process, in folders that several containers share (/dev/shm). Process numbers
// do not identify a living owner: another container has its own. A lock does: the kernel releases it at the end of
// the process that holds it, and every process that sees the file sees the lock.
#pragma once
#include <string>

#include "kernels/core/files.h"

namespace gt {

struct OwnedFile {
  Fd fd;             // holds the lock; empty if the file could not be created (errno)
  std::string path;  // FOLDER/gpttrain-PID-owned-RANDOM; the number is for people
};

// Creates an empty file, for this user alone, owned until `fd` is closed in this process and its forks.
OwnedFile create_owned_file(const std::string& folder);

// Removes the files of this user that create_owned_file made in that folder and whose owners have ended. Leaves every
// other file alone, and those on file systems without locks.
void remove_ownerless_files(const std::string& folder);

}  // namespace gt
