// Runs shell commands for measurements in fresh processes.
#pragma once
#include <string>

namespace gt {

struct ShellResult {
  std::string out;  // standard output and error
  int status = 0;   // exit code; 128 + n for a signal
};
ShellResult run_shell(const std::string& command);  // throws kIo if it cannot be started

std::string tail(const std::string& text);  // its last 2,000 bytes
std::string this_program();                 // path of this executable, quoted for the shell

}  // namespace gt
