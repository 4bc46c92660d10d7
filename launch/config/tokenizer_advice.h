// Advice for a run whose data are a text file, but which has no tokenizer.
#pragma once
#include <string>

#include "launch/config/config.h"

namespace gt {

// Returns the flag or the command that provides a tokenizer for the text in `path`: the tokenizer of the run's newest
// checkpoint, one in the working directory that was trained before, or a command that trains it.
std::string tokenizer_advice(const Config&, const std::string& path);

}  // namespace gt
