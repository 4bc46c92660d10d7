// Startup check that the checkpoint folder is shared by all ranks, so that the first save cannot fail for it.
#pragma once
#include <string>

#include "parallel/comm/process_group.h"

namespace gt {

// Rank 0 writes a token into `dir`, every rank reads it back, rank 0 removes it. Throws AgreedError kUsage naming every
// rank and machine that cannot read it. If rank 0 cannot write to the folder, the check is skipped: saves will report
// it. Collective.
void require_shared_folder(ProcessGroup& world, const std::string& dir);

}  // namespace gt
