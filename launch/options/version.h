// What --version prints. Libraries are asked at run time which version they are, through their symbols and without
// their headers, whose homes are other folders; so the answer is what this process is linked with, not what it was
// built from.
#pragma once
#include <string>

#include "launch/options/console_text.h"

namespace gt {

const char* program_version();  // "0.1.0"
const char* git_hash();         // of the sources, "-dirty" behind it when they had changes; "unknown" without git

// Compiler, libraries, instruction set of the processor in use, CUDA with its driver and libraries, or why not.
Rows library_versions();
std::string version_text();  // "gpttrain 0.1.0 (git ...)", and these

}  // namespace gt
