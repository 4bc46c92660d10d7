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
  const std::string variable = std::string("OMPI_COMM_WORLD_RANK=") + std::to_string(rank) + '\0';
  for (int mpirun : children(pid))
    for (int child : children(mpirun))
      if (slurp("/proc/" + std::to_string(child) + "/environ").find(variable) != std::string::npos) return child;
  return 0;
}

bool send_signal(int pid, int n) { return pid > 1 && kill(pid, n) == 0; }

bool wait_for_step(const std::string& log, int64_t step) {
  const std::string wanted = "\"step\": " + std::to_string(step) + ",";
  for (int i = 0; i < 6000; ++i) {
    if (slurp(log).find(wanted) != std::string::npos) return true;
    usleep(10000);
  }
  FAIL_CHECK(log << " has no record of step " << step << " after a minute");
  return false;
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
