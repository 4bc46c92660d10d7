// The prompts of gpttrain generate: from the command line, a file or standard input.
#pragma once
#include <string>
#include <vector>

#include "launch/commands/cli.h"

namespace gt {

// Puts standard input in the place of `--prompt -`, in the arguments and in the words that ranks are started with, for
// those have none. kUsage where that cannot be: --prompt-file - and ranks that are processes.
void take_standard_input(Command&);

// One prompt or more. kUsage naming file and line: nothing there, no text, more than 64 MiB.
std::vector<std::string> read_prompts(const GenerateArgs&);

// Prompts as one string, to be sent, and back.
std::string pack_prompts(const std::vector<std::string>&);
std::vector<std::string> unpack_prompts(const std::string&);

}  // namespace gt
