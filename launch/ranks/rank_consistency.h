// Startup check that all ranks agree on build, token files and options. A mismatch would otherwise train silently.
#pragma once
#include <string>
#include <vector>

#include "parallel/comm/process_group.h"

namespace gt {

struct Config;
class Dataset;

struct Trait {
  std::string name, value;
  std::string remedy;  // advice if ranks differ in it
};

// Throws AgreedError kUsage if ranks differ in a trait, with the values per machine and rank. If all agree, the cost is
// one all-reduce of two words. Collective.
void require_consistent(ProcessGroup& world, const std::vector<Trait>& mine);

// Checks build, instruction set and configuration. Requires: called before the process groups of the layout are
// created. Collective.
void require_same_program(const Config&, GroupFactory&);

// Returns build id, instruction set of the CPU kernels, and every option that affects training.
std::vector<Trait> program_traits(const Config&);
// Returns tokenizer hash, contents of the token files and sample order. `valid` may be nullptr.
std::vector<Trait> data_traits(const std::string& tokenizer_sha256, const Dataset& train, const Dataset* valid);

}  // namespace gt
