// Records system calls of a program: programs started, connections made, files opened. A ptrace tracer of our own,
// because strace is not installed everywhere.
#pragma once
#include <string>
#include <vector>

namespace gt {

struct CallTrace {
  bool possible = true;  // false: tracing is forbidden here
  int code = -1;
  int programs = 0;                        // execve calls, the first one included
  int connections = 0;                     // connect, and creation of non-local sockets
  std::vector<std::string> read, written;  // paths as passed to open; relative ones are kept so
};

// Runs words[0] in `cwd` with its threads and children; returns when all have ended. Standard output is dropped.
CallTrace trace_calls(const std::vector<std::string>& words, const std::string& cwd);

}  // namespace gt
