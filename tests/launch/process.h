// Runs the built binary as a user would: returns its exit code and output for a command line.
#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace gt {

struct Outcome {
  int code = -1;    // exit code; 128 + n for a signal; 124: killed at the time limit
  std::string out;  // standard output and error together
  bool prints(const std::string& text) const { return out.find(text) != std::string::npos; }
  int count(const std::string& text) const;  // number of occurrences
};

// Runs `gpttrain <args>` through the shell in `cwd`. `while_running` is called with the process group after the start.
Outcome gpttrain(const std::string& args, const std::string& cwd, int limit_s = 120,
                 const std::function<void(int pid)>& while_running = {});
Outcome shell(const std::string& command, const std::string& cwd, int limit_s = 120,
              const std::function<void(int pid)>& while_running = {});

// Fresh folder in the system's temporary folder; removed by the destructor.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Runs gpttrain and requires exit code 0.
Outcome must(const std::string& args, const std::string& cwd);
inline Outcome must(const std::string& args, const TempDir& dir) { return must(args, dir.path()); }

// Returns a TCP port of the loopback interface on which nothing listens.
int free_port();

void write_file(const std::string& path, const std::string& bytes);
std::string read_file(const std::string& path);

// Returns the values of one key in the step records of a log.jsonl; the last record of a step wins.
std::vector<double> logged(const std::string& run_dir, const std::string& key, const std::string& type = "step");

}  // namespace gt
