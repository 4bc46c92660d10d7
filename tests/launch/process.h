// Drives the built binary as a user would: a command line in, exit code and everything it printed out.
#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace gt {

struct Outcome {
  int code = -1;    // exit code; 128 + n for a signal; 124: it took longer than the limit and was killed
  std::string out;  // standard output and error together
  bool says(const std::string& text) const { return out.find(text) != std::string::npos; }
  int count(const std::string& text) const;  // times that it says so
};

// Runs `gpttrain <args>` through the shell in `cwd`. `while_running` is called with the process group once it runs.
Outcome gpttrain(const std::string& args, const std::string& cwd, int limit_s = 120,
                 const std::function<void(int pid)>& while_running = {});
Outcome shell(const std::string& command, const std::string& cwd, int limit_s = 120,
              const std::function<void(int pid)>& while_running = {});

// A fresh folder below the system's temporary one, removed at the end.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// One that has to end with 0.
Outcome must(const std::string& args, const std::string& cwd);
inline Outcome must(const std::string& args, const TempDir& dir) { return must(args, dir.path()); }

void write_file(const std::string& path, const std::string& bytes);
std::string read_file(const std::string& path);

// Numbers of one key in the step records of a log.jsonl, the last record of a step counting.
std::vector<double> logged(const std::string& run_dir, const std::string& key, const std::string& type = "step");

}  // namespace gt
