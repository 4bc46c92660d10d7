// Memory of every rank by category, planned beside measured.
#pragma once
#include <vector>

#include "launch/engine/engine.h"
#include "launch/observe/metrics.h"

namespace gt {

MemoryBytes bytes_of(const MemoryReport&);
int64_t total(const MemoryBytes&);
int64_t resident_bytes();  // peak resident set of this process

// Collective over the engine's world: what each rank plans and has, by rank.
std::vector<RankMemory> gather_memory(const Engine&, const MemoryReport& planned, int64_t process_bytes);

// At most MemoryRecord::kMostRanks of them: of many ranks the largest of each pipeline rank.
std::vector<RankMemory> worth_logging(std::vector<RankMemory> all);

}  // namespace gt
