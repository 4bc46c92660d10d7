// Which committed steps stay and which go. Nothing that training needs is deleted before a newer step has been read
// back from the disk, whole, and found good. One process at a time.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/vfs.h"

namespace gt {

struct Retention {
  int keep = 3;            // newest steps; below 1: nothing is ever deleted
  int64_t keep_every = 0;  // and every step that this divides; 0: none
  int keep_best = 1;       // and so many of the best validation losses
};

struct PrunePlan {
  struct Entry {
    std::string name;  // in the folder
    std::string why;   // "attempt that died", "newest 1 of 3", "older than the 3 newest"
    int64_t bytes = 0;
    bool leftover = false;  // of an attempt or a deletion: never was a step, or is none any more
  };
  std::vector<Entry> keep, remove;  // steps kept, newest first; everything to be removed
};

// Looks only. `attempts`: what died attempts and deletions left goes too. Steps set aside as corrupt or abandoned go
// when two newer steps exist, and all but the `keep` newest of them in any case.
PrunePlan plan_prune(Vfs&, const std::string& dir, const Retention&, bool attempts);

// Does what the plan says. Before a step goes the newest kept step is verified to the last byte, from the disk:
// kDamaged when it is not good, and nothing was deleted. A removal is a rename to .del-…, a sync of the folder, then
// unlinks.
void prune(Vfs&, const std::string& dir, const PrunePlan&);

}  // namespace gt
