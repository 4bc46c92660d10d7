// Checkpoints need one folder that all ranks see: found out before a step is computed, not at the first save.
#pragma once
#include <string>

#include "parallel/comm/process_group.h"

namespace gt {

// Collective. Rank 0 writes a word into `dir`, every rank reads it back, it is removed. Throws AgreedError kUsage
// naming every rank and machine that does not find it. A folder that rank 0 cannot write to is not judged: saves will
// say so.
void require_one_folder(ProcessGroup& world, const std::string& dir);

}  // namespace gt
