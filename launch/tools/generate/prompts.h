// Prompts of gpttrain generate: from the command line, a file or standard input.
#pragma once
#include <string>
#include <vector>

#include "launch/tools/generate/subcommands.h"

namespace gt {

// Replaces `--prompt -` by the text of standard input, in the arguments and in the words passed to ranks, which have no
// standard input. Throws kUsage if that is impossible: --prompt-file - with ranks as processes.
void take_standard_input(Command&);

// Returns at least one prompt. Throws kUsage naming file and line for empty input, invalid text, or more than 64 MiB.
std::vector<std::string> read_prompts(const GenerateArgs&);

// Serialize prompts to one string and back, for sending.
std::string pack_prompts(const std::vector<std::string>&);
std::vector<std::string> unpack_prompts(const std::string&);

}  // namespace gt
