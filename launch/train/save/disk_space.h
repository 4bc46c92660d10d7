// Checks before the first step whether the disk has space for the checkpoints of a run.
#pragma once
#include <cstdint>
#include <string>

namespace gt {

// Facts known at the start of a run. Sizes in bytes.
struct DiskSpace {
  std::string dir;         // folder of the checkpoints
  int64_t free = -1;       // available to this user, including leftovers of failed attempts; -1: unknown
  int64_t checkpoint = 0;  // size of one step, all ranks
  int64_t saves = -1;      // saves that the run will make; -1: unknown
  int64_t there = 0;       // steps already in the folder
  int64_t most = 1;        // steps that exist at once: one is deleted after a newer one has been written
};

// Returns the free bytes of the file system that holds or will hold `dir`. -1: unknown.
int64_t free_bytes(const std::string& dir);

// Throws kIo if not even the first checkpoint of a run fits, less an eighth as a margin for file systems that compress.
// Never throws for a run that can resume from a checkpoint: its disk may be full temporarily. Returns a warning if the
// steps kept at once do not fit, else "". Does neither if the free bytes are unknown.
std::string check_disk(const DiskSpace&);

}  // namespace gt
