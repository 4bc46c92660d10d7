// What ranks must have in common before they train together, compared once at the start: ranks of different builds, on
// different token files or with different options would train without a word.
#pragma once
#include <string>
#include <vector>

#include "parallel/comm/process_group.h"

namespace gt {

struct Config;
class Dataset;

struct Trait {
  std::string name, value;
  std::string remedy;  // what to do where ranks differ in it
};

// Collective. Throws AgreedError kUsage where ranks differ in a trait: which ones, what each machine has, with its
// ranks. Where all are alike it costs one reduction of two words.
void require_alike(ProcessGroup& world, const std::vector<Trait>& mine);

// Collective. Before groups of the layout are made: the same build, instruction set and configuration on every rank.
void require_same_program(const Config&, GroupFactory&);

// This program, the instruction set that its CPU kernels use, and every option that shapes the training.
std::vector<Trait> program_traits(const Config&);
// The tokenizer and the contents of the files; `order`: of the samples. `valid` may be nullptr.
std::vector<Trait> data_traits(const std::string& tokenizer_sha256, const Dataset& train, const Dataset* valid);

}  // namespace gt
