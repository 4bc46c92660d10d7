#include "launch/ranks/start/start_limits.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "kernels/core/check.h"
#include "kernels/core/host.h"

namespace gt {
namespace {

namespace fs = std::filesystem;
constexpr long long kMiB = 1 << 20;
// Measured. A rank holds a socket per other rank and some 30 files, and has up to 7 threads besides its compute
// threads.
constexpr long long kSegment = 4 * kMiB, kFiles = 64, kFilesOfRank = 1, kThreads = 8;
constexpr long long kAddresses = 256 * kMiB, kAddressesOfThread = 16 * kMiB;

long long limit_of(int which, bool hard) {
  rlimit l{};
  if (getrlimit(static_cast<__rlimit_resource>(which), &l) != 0) return -1;
  const rlim_t value = hard ? l.rlim_max : l.rlim_cur;
  return value == RLIM_INFINITY || value > static_cast<rlim_t>(1) << 62 ? -1 : static_cast<long long>(value);
}

long long number_in(const fs::path& file) {
  std::ifstream in(file);
  long long n = -1;
  return in >> n ? n : -1;
}

// Returns the number of threads of all processes of this user.
long long tasks_of_user() {
  long long sum = 0;
  std::error_code ec;
  for (const auto& e : fs::directory_iterator("/proc", ec)) {
    struct stat s {};
    if (!std::isdigit(static_cast<unsigned char>(e.path().filename().string()[0])) || stat(e.path().c_str(), &s) != 0 ||
        s.st_uid != getuid())
      continue;
    std::ifstream in(e.path() / "status");
    for (std::string line; std::getline(in, line);)
      if (line.rfind("Threads:", 0) == 0) sum += std::atoll(line.c_str() + 8);
  }
  return sum;
}

void take_least(MachineLimits& m, long long left, std::string from) {
  if (m.tasks >= 0 && m.tasks <= left) return;
  m.tasks = std::max(0LL, left);
  m.tasks_from = std::move(from);
}

void apply_cgroup_limits(MachineLimits& m) {
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("0::", 0) != 0) continue;
    for (fs::path at = line.substr(3);; at = at.parent_path()) {
      const fs::path folder = "/sys/fs/cgroup" + at.string();
      if (const long long most = number_in(folder / "pids.max"); most >= 0)
        take_least(m, most - std::max(0LL, number_in(folder / "pids.current")),
                   fmt::format("pids.max {} of the control group", most));
      if (at.empty() || at == at.parent_path()) break;
    }
  }
}

}  // namespace

MachineLimits machine_limits() {
  MachineLimits m;
  struct statvfs s {};
  if (statvfs("/dev/shm", &s) == 0)
    m.shared_memory = static_cast<long long>(s.f_bavail) * static_cast<long long>(s.f_frsize);
  m.files = limit_of(RLIMIT_NOFILE, true);
  const long long tasks = limit_of(RLIMIT_NPROC, false);
  constexpr long long kMany = 10000;                  // counting is slow with many processes
  if (tasks >= 0 && tasks < kMany && geteuid() != 0)  // root has no such limit
    take_least(m, tasks - tasks_of_user(), fmt::format("ulimit -u {}", tasks));
  apply_cgroup_limits(m);
  m.addresses = limit_of(RLIMIT_AS, false);
  std::ifstream in("/proc/self/statm");
  long long pages = 0;
  if (in >> pages) m.addresses_used = pages * sysconf(_SC_PAGESIZE);
  return m;
}

std::vector<std::string> lacking(const MachineLimits& m, int ranks, int threads) {
  std::vector<std::string> out;
  const std::string who = ranks == 1 ? "one rank needs" : fmt::format("{} ranks need", ranks);
  const auto mib = [](long long bytes) { return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / kMiB); };
  if (const long long need = kSegment * ranks; ranks > 1 && m.shared_memory >= 0 && m.shared_memory < need)
    out.push_back(
        fmt::format("/dev/shm has {} free, {} {}: mount -o remount,size=… /dev/shm, docker run "
                    "--shm-size=…, or --launch.ranks threads",
                    mib(m.shared_memory), who, mib(need)));
  if (const long long need = ranks > 1 ? kFiles + kFilesOfRank * ranks : kFiles; m.files >= 0 && m.files < need)
    out.push_back(fmt::format("a process may have {} open files, {} {}: raise ulimit -n", m.files, who, need));
  const long long tasks = ranks * (kThreads + threads) + (ranks > 1 ? 1 : 0);
  if (m.tasks >= 0 && m.tasks < tasks)
    out.push_back(fmt::format(
        "{} more threads and processes can be created ({}), {} {}: raise that limit, or lower device.threads", m.tasks,
        m.tasks_from, who, tasks));
  const long long needed = m.addresses_used + kAddresses + kAddressesOfThread * threads;
  if (m.addresses >= 0 && m.addresses < needed)
    out.push_back(fmt::format("a process may have {} of address space, one rank needs at least {}: raise ulimit -v",
                              mib(m.addresses), mib(needed)));
  return out;
}

void require_limits(int ranks, int threads) {
  const auto files = static_cast<rlim_t>(ranks > 1 ? kFiles + kFilesOfRank * ranks : kFiles);
  rlimit l{};
  if (getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_cur < files) {
    l.rlim_cur = std::min(files, l.rlim_max);
    setrlimit(RLIMIT_NOFILE, &l);
  }
  const std::vector<std::string> missing = lacking(machine_limits(), ranks, threads);
  GT_REQUIRE(missing.empty(), Exit::kUsage, host_name(),
             " does not let the job start: ", fmt::format("{}", fmt::join(missing, "; ")));
}

bool is_no_thread(const std::exception& e) {
  const auto* error = dynamic_cast<const std::system_error*>(&e);
  return error != nullptr && error->code() == std::errc::resource_unavailable_try_again;
}

std::string no_thread_text() {
  const MachineLimits m = machine_limits();
  std::string out = "cannot create a thread";
  if (m.tasks >= 0) out += fmt::format(": {} more can be created ({})", m.tasks, m.tasks_from);
  if (m.addresses >= 0)
    out += fmt::format("; ulimit -v leaves this process {} MiB", (m.addresses - m.addresses_used) / kMiB);
  return out + "; raise the limit (ulimit -u, ulimit -v, pids of the container), or lower device.threads";
}

}  // namespace gt
