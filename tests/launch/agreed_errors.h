// Errors that all ranks of a job agree on (launch/ranks/agree.h), collected by rank.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "parallel/comm/process_group.h"

namespace gt {

// Runs `check` on `ranks` ranks that are threads. Returns, by rank, "2 speaks: what" of an AgreedError with that code
// on the rank that prints it, "2: what" on the others, "" without an error.
std::vector<std::string> agreed_errors(int ranks, const std::function<void(ProcessGroup& world, int rank)>& check);

}  // namespace gt
