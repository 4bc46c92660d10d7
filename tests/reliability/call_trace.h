// What a program asks the kernel for: programs started, connections made, files opened. A tracer of our own (ptrace),
// because strace is not everywhere.
#pragma once
#include <string>
#include <vector>

namespace gt {

struct CallTrace {
  bool possible = true;  // false: tracing is forbidden here
  int code = -1;
  int programs = 0;                   // execve calls, the first one included
  int connections = 0;                // connect, and sockets that are not local
  std::vector<std::string> read, written;  // paths as given to open; relative ones stay so
};

// Runs words[0] in `cwd`, its threads and children with it, and returns when all have ended. Standard output is dropped.
CallTrace trace_calls(const std::vector<std::string>& words, const std::string& cwd);

}  // namespace gt
