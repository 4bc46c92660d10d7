// Collects, per rank, errors agreed on by all ranks of a job (launch/ranks/agree.h).
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "parallel/comm/process_group.h"

namespace gt {

// Runs `check` on `ranks` ranks as threads. Returns per rank "2 reports: what" for an AgreedError with code 2 on the
// rank that prints it, "2: what" on the others, and "" without an error.
std::vector<std::string> agreed_errors(int ranks, const std::function<void(ProcessGroup& world, int rank)>& check);

}  // namespace gt
