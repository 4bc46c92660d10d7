// Whether the checkpoints of a run have room on their disk, judged before the first step.
#pragma once
#include <cstdint>
#include <string>

namespace gt {

// What is known when a run starts. Sizes in bytes.
struct DiskRoom {
  std::string dir;         // of the checkpoints
  int64_t free = -1;       // that this user may take, leftovers of dead attempts included; -1: not known
  int64_t checkpoint = 0;  // of one step, all ranks
  int64_t saves = -1;      // that the run will make; -1: not known
  int64_t there = 0;       // steps in the folder
  int64_t most = 1;        // steps that lie there at once: a step is deleted when a newer one has been written
};

// Returns the free bytes of the file system that holds `dir`, or will hold it once it is made. -1: it does not say.
int64_t free_bytes(const std::string& dir);

// Throws kIo when not even the first checkpoint of a run has room, with an eighth of it as a margin for file systems
// that compress. A run that has a checkpoint to go on from is never refused: its disk may be full for a while. Returns
// a warning when there is no room for all steps that will lie there at once, else "". Where the free bytes are not
// known, neither.
std::string check_disk(const DiskRoom&);

}  // namespace gt
