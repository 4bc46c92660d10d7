#include "tests/launch/rank_processes.h"

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/test.h"

namespace gt {
namespace {

std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

std::vector<int> children(int pid) {
  std::istringstream in(slurp("/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) + "/children"));
  std::vector<int> out;
  for (int child; in >> child;) out.push_back(child);
  return out;
}

int process_of(int pid, int rank) {
  const std::string variable = std::string(1, '\0') + "RANK=" + std::to_string(rank) + '\0';
  for (int launcher : children(pid))
    for (int child : children(launcher))
      if (slurp("/proc/" + std::to_string(child) + "/environ").find(variable) != std::string::npos) return child;
  return 0;
}

bool send_signal(int pid, int n) { return pid > 1 && kill(pid, n) == 0; }

bool wait_until(const std::string& what, const std::function<bool()>& ready) {
  for (int i = 0; i < (kSanitized ? 60000 : 6000); ++i) {
    if (ready()) return true;
    usleep(10000);
  }
  FAIL_CHECK(what << ": waited a minute for it");
  return false;
}

bool wait_until_taken(int pid, int n) {
  const std::string status = "/proc/" + std::to_string(pid) + "/status";
  return wait_until("signal " + std::to_string(n) + " is taken", [&] {
    const std::string text = slurp(status);
    for (const char* field : {"SigPnd:", "ShdPnd:"})
      if (const size_t at = text.find(field); at != std::string::npos)
        if ((std::stoull(text.substr(at + 7), nullptr, 16) >> (n - 1) & 1) != 0) return false;
    return true;
  });
}

bool wait_for_step(const std::string& log, int64_t step) {
  const std::string step_field = "\"step\": " + std::to_string(step) + ",";
  return wait_until(log + " has a record of step " + std::to_string(step),
                    [&] { return slurp(log).find(step_field) != std::string::npos; });
}

std::string left_behind(const std::string& folder, const std::vector<int>& pids) {
  std::string out;
  std::error_code ec;
  for (const auto& e : std::filesystem::directory_iterator("/proc", ec)) {
    const std::string name = e.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const auto cwd = std::filesystem::read_symlink("/proc/" + name + "/cwd", ec);
    if (!ec && cwd == folder) out += "process " + name + "\n";
  }
  for (int pid : pids) {
    if (pid > 0 && kill(pid, 0) == 0) out += "process " + std::to_string(pid) + "\n";
    for (const auto& e : std::filesystem::directory_iterator("/dev/shm", ec))
      if (e.path().filename().string().rfind("gpttrain-" + std::to_string(pid) + "-", 0) == 0)
        out += "shared memory " + e.path().string() + "\n";
  }
  return out;
}

}  // namespace gt
