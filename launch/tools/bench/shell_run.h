// Runs shell commands for measurements in fresh processes.
#pragma once
#include <string>
#include <string_view>

#include "kernels/core/files.h"

namespace gt {

struct ShellResult {
  std::string out;  // standard output and error
  int status = 0;   // exit code; 128 + n for a signal
};
ShellResult run_shell(const std::string& command);  // throws kIo if it cannot be started

// A file in memory whose path those commands can read and write. Gone with this process, however that ends.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view content = "");  // throws kIo
  std::string path() const;

 private:
  Fd fd_;
};

std::string tail(const std::string& text);  // its last 2,000 bytes
std::string this_program();                 // path of this executable, quoted for the shell

}  // namespace gt
