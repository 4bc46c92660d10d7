// Output of --version. Library versions are queried at run time through each library's own symbols, not its headers.
// They are therefore those linked into this process, and this folder needs no include of other folders' libraries.
#pragma once
#include <string>

#include "launch/options/console_text.h"

namespace gt {

const char* program_version();  // "0.1.0"
const char* git_hash();         // commit of the sources, "-dirty" appended if modified; "unknown" without git

// Compiler, libraries, CPU instruction set in use, and CUDA with driver and libraries, or why it is unavailable.
Rows library_versions();
std::string version_text();  // "gpttrain 0.1.0 (git ...)" followed by library_versions()

}  // namespace gt
