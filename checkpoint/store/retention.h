// Retention policy: which committed steps are kept and which are deleted. Nothing a run depends on is deleted before a
// newer step has been read back from disk in full and found valid. One process at a time.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/options.h"
#include "checkpoint/store/vfs.h"

namespace gt {

struct PrunePlan {
  struct Entry {
    std::string name;  // in the folder
    std::string why;   // "attempt that died", "newest 1 of 3", "older than the 3 newest"
    int64_t bytes = 0;
    bool leftover = false;  // left by an attempt or a deletion: not a step
  };
  std::vector<Entry> keep, remove;  // kept steps, newest first; everything to be removed
};

// Plans a deletion; changes nothing. `attempts`: also removes leftovers of dead attempts and deletions. Steps set aside
// as corrupt or abandoned are removed once two newer steps exist; at most the `keep` newest of them ever stay.
PrunePlan plan_prune(Vfs&, const std::string& dir, const Retention&, bool attempts);

// Executes a plan. Before any step is deleted, the newest kept step is verified to the last byte, from disk. kDamaged
// when it is invalid; nothing was deleted then. A removal is a rename to .del-…, a sync of the folder, then unlinks.
void prune(Vfs&, const std::string& dir, const PrunePlan&);

}  // namespace gt
