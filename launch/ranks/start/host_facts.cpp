#include "launch/ranks/start/host_facts.h"

#include <fmt/format.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "kernels/backend.h"
#include "kernels/core/check.h"
#include "kernels/core/files.h"
#include "kernels/core/host.h"
#include "kernels/core/json.h"
#include "kernels/core/text.h"
#include "launch/hosts/network.h"
#include "launch/options/version.h"
#include "launch/ranks/start/bundle.h"
#include "launch/ranks/start/host_probe.h"
#include "launch/ranks/start/own_process.h"
#include "launch/ranks/start/start_limits.h"

namespace gt {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
constexpr double kAnswerSeconds = 20, kClockSeconds = 2;

int64_t bytes_of(const std::string& path) {
  std::error_code ec;
  if (fs::is_directory(path, ec)) return 0;
  const auto size = fs::file_size(path, ec);
  return ec ? -1 : static_cast<int64_t>(size);
}

// Returns the free bytes of the file system of `folder`, or of its nearest existing parent.
int64_t free_bytes(fs::path folder) {
  struct statvfs s {};
  for (std::error_code ec; !folder.empty() && !fs::exists(folder, ec); folder = folder.parent_path())
    if (folder == folder.parent_path()) break;
  if (statvfs(folder.empty() ? "." : folder.c_str(), &s) != 0) return -1;
  return static_cast<int64_t>(s.f_bavail) * static_cast<int64_t>(s.f_frsize);
}

std::string first_bytes(const std::string& path, size_t most) {
  std::ifstream in(path, std::ios::binary);
  std::string text(most, '\0');
  in.read(text.data(), static_cast<std::streamsize>(most));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(0, in.gcount())));
  return text;
}

// Calls f(name, member) for each fact, so that writer and reader share one list.
template <class Facts, class F>
void each_fact(Facts& x, F f) {
  f("host", x.host), f("program", x.program), f("isa", x.isa), f("mpi", x.mpi), f("orted", x.orted);
  f("cores", x.cores), f("memory", x.memory), f("memory_free", x.memory_free), f("shared_memory", x.shared_memory);
  f("open_files", x.open_files), f("disk_free", x.disk_free), f("clock", x.clock), f("interfaces", x.interfaces);
  f("devices", x.devices), f("files", x.files), f("marker", x.marker);
}

std::string bytes_text(int64_t bytes) { return bytes < 0 ? "unknown" : format_bytes(static_cast<double>(bytes)); }

// Returns "0.1.0 on node1, node2; 0.2.0 on node3"; "" if all hosts agree.
template <class Value>
std::string who_has(const std::vector<HostFacts>& all, Value value) {
  std::vector<std::pair<std::string, std::string>> groups;  // value → hosts
  for (const HostFacts& h : all) {
    const std::string v = value(h);
    const auto it = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == v; });
    if (it == groups.end())
      groups.emplace_back(v, h.host);
    else
      it->second += ", " + h.host;
  }
  std::string out;
  if (groups.size() < 2) return out;
  for (const auto& [v, hosts] : groups) out += fmt::format("{}{} on {}", out.empty() ? "" : "; ", v, hosts);
  return out;
}

bool uses_mpirun() { return !find_program("mpirun").empty(); }

// Returns why a host reported no facts.
std::string failure_of(const HostAnswer& a, const std::string& program) {
  if (a.code == HostAnswer::kNone)
    return fmt::format("{}: no answer within {:.0f} s: is it up, and does a firewall let ssh through?", a.host,
                       kAnswerSeconds);
  const std::string message = printable(a.last_line());
  if (a.code == HostAnswer::kSshFailed)
    return fmt::format("{}: ssh: {}", a.host, message.empty() ? "failed without a message" : message);
  if (a.code == 126 || a.code == 127)
    return fmt::format("{}: {} does not start there: {}; the same program must be at the same path on every host",
                       a.host, program, message.empty() ? "not found" : message);
  if (a.code >= 128) return fmt::format("{}: {} ended there by signal {}", a.host, program, a.code - 128);
  if (a.code == 0) return fmt::format("{}: ssh gave no answer; is it installed here?", a.host);
  return fmt::format("{}: {}", a.host, message.empty() ? fmt::format("exit code {}", a.code) : message);
}

}  // namespace

HostFacts facts_here(const FactsRequest& request) {
  HostFacts f;
  f.host = host_name();
  f.program = fmt::format("{} ({})", program_version(), git_hash());
  f.isa = cpu_isa();
  for (const auto& [name, version] : library_versions())
    if (name == "MPI") f.mpi = version;
  f.orted = find_program("orted");
  f.cores = sysconf(_SC_NPROCESSORS_ONLN);
  struct sysinfo memory {};
  if (sysinfo(&memory) == 0) f.memory = static_cast<int64_t>(memory.totalram) * memory.mem_unit;
  f.memory_free = static_cast<int64_t>(sysconf(_SC_AVPHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  std::ifstream meminfo("/proc/meminfo");
  for (std::string word; meminfo >> word;)
    if (int64_t kib = 0; word == "MemAvailable:" && meminfo >> kib) f.memory_free = kib * 1024;
  const MachineLimits limits = machine_limits();
  f.shared_memory = limits.shared_memory, f.open_files = limits.files;
  f.disk_free = free_bytes(fs::absolute(request.folder.empty() ? "." : request.folder));
  f.clock = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  f.interfaces = interfaces_up();
  if (const Backend* cuda = cuda_backend(nullptr))
    for (int d = 0; d < cuda->device->count(); ++d) f.devices.push_back(cuda->device->describe(d));
  for (const std::string& path : request.files) f.files[path] = bytes_of(path);
  if (!request.marker.empty()) f.marker = first_bytes(request.marker, 64);
  return f;
}

std::string to_json(const HostFacts& facts) {
  json out;
  each_fact(facts, [&](const char* name, const auto& member) { out[name] = member; });
  return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

HostFacts facts_from_json(const std::string& text, const std::string& host) {
  HostFacts facts;
  try {
    const auto in = parse_json<json>(text, "", {.bytes = 64 << 20});
    each_fact(facts, [&](const char* name, auto& member) { in.at(name).get_to(member); });
  } catch (const std::exception& e) {
    fail(Exit::kDamaged, host, ": its answer is not what `gpttrain check --here` prints: ", printable(e.what()));
  }
  return facts;
}

namespace {

std::string facts_command(const FactsRequest& request) {
  std::string command =
      "cd " + shell_word(fs::current_path().string()) + " && exec " + shell_word(own_program()) + " check --here";
  for (const std::string& file : request.files) command += " --file " + shell_word(file);
  if (!request.folder.empty()) command += " --folder " + shell_word(request.folder);
  if (!request.marker.empty()) command += " --marker " + shell_word(request.marker);
  return command;
}

HostReport report_of(const std::vector<HostAnswer>& answers) {
  HostReport out;
  for (const HostAnswer& a : answers) {
    out.unreachable |= a.code == HostAnswer::kNone || a.code == HostAnswer::kSshFailed;
    if (a.code != 0 || a.out.empty()) {
      out.problems.push_back(failure_of(a, own_program()));
      continue;
    }
    try {
      out.facts.push_back(facts_from_json(a.out, a.host));
      out.facts.back().host = a.host;  // name used in the hostfile
    } catch (const Error& e) { out.problems.emplace_back(e.what()); }
  }
  return out;
}

void require_ready(const HostReport& report) {
  std::vector<std::string> problems = report.problems;
  for (const HostFacts& h : report.facts)
    if (h.orted.empty() && uses_mpirun())
      problems.push_back(h.host +
                         ": no orted in the PATH of a command that ssh runs there: install "
                         "openmpi-bin, or use the portable folder");
  GT_REQUIRE(problems.empty(), report.unreachable ? Exit::kHardware : Exit::kUsage,
             "the job cannot start on these hosts:\n  ", fmt::format("{}", fmt::join(problems, "\n  ")),
             "\nNothing was started. `gpttrain check` with the same flags shows all of them");
}

std::vector<std::string> names_of(const std::vector<HostSlots>& hosts) {
  std::vector<std::string> names;
  for (const HostSlots& h : hosts) names.push_back(h.host);
  return names;
}

bool needs_check(const std::vector<HostSlots>& hosts) { return !other_agent_than_ssh() && !is_local_only(hosts); }

}  // namespace

HostReport collect_facts(const std::vector<std::string>& hosts, const FactsRequest& request, int ssh_port) {
  const auto begin = std::chrono::steady_clock::now();
  HostReport out = report_of(run_on_hosts(hosts, facts_command(request), ssh_port, kAnswerSeconds));
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return out;
}

std::vector<std::string> differences(const std::vector<HostFacts>& all, const std::vector<int>& ranks, int threads,
                                     bool named_interface, double seconds) {
  std::vector<std::string> out;
  const auto compare = [&](const std::string& what, const std::string& found, const char* remedy) {
    if (!found.empty()) out.push_back(fmt::format("{}: {}; {}", what, found, remedy));
  };
  compare("program", who_has(all, [](const HostFacts& h) { return h.program; }), "copy one build to all hosts");
  compare("instruction set", who_has(all, [](const HostFacts& h) { return h.isa; }),
          "set --device.isa on all; results depend on it");
  compare("MPI", who_has(all, [](const HostFacts& h) { return h.mpi; }), "use one version, or the portable folder");
  std::set<std::string> files;
  for (const HostFacts& h : all)
    for (const auto& [path, bytes] : h.files) files.insert(path);
  for (const std::string& path : files) {
    const auto size = [&](const HostFacts& h) {
      const auto it = h.files.find(path);
      return it == h.files.end() || it->second < 0 ? std::string("missing") : bytes_text(it->second);
    };
    const std::string found = who_has(all, size);
    if (found.empty() && !all.empty() && size(all.front()) == "missing")
      out.push_back(path + ": missing on every host");
    compare(path, found, "copy it to every host, or put it into a shared folder");
  }
  compare("run folder",
          who_has(all, [](const HostFacts& h) { return std::string(h.marker.empty() ? "not shared" : "shared"); }),
          "checkpoints need a folder that all hosts share");
  double least = 0, most = 0;
  for (const HostFacts& h : all) {
    least = least == 0 ? h.clock : std::min(least, h.clock);
    most = std::max(most, h.clock);
  }
  if (const double apart = most - least - seconds; apart > kClockSeconds)
    out.push_back(fmt::format(
        "clocks are {:.1f} s apart; run a time service, otherwise timelines and logs will not match", apart));
  for (size_t i = 0; i < all.size(); ++i) {
    const HostFacts& h = all[i];
    if (all.size() > 1 && h.orted.empty() && uses_mpirun())
      out.push_back(
          fmt::format("{}: no orted in the PATH of a command that ssh runs there: install openmpi-bin, or use "
                      "the portable folder",
                      h.host));
    for (const std::string& lack :
         lacking({.shared_memory = h.shared_memory, .files = h.open_files}, ranks[i], threads))
      out.push_back(fmt::format("{}: {}", h.host, lack));
    if (all.size() > 1 && h.interfaces.size() > 1 && !named_interface)
      out.push_back(
          fmt::format("{}: {} networks are up ({}) and Open MPI may use all of them; name one with "
                      "--comm.interface",
                      h.host, h.interfaces.size(), fmt::join(h.interfaces, ", ")));
  }
  return out;
}

std::string facts_table(const std::vector<HostFacts>& all, const std::vector<int>& ranks) {
  std::vector<std::vector<std::string>> rows{{"host", "ranks", "program", "instructions", "cores", "memory free",
                                              "/dev/shm", "files", "disk free", "network", "GPUs"}};
  for (size_t i = 0; i < all.size(); ++i) {
    const HostFacts& h = all[i];
    rows.push_back({h.host, std::to_string(ranks[i]), h.program, h.isa, std::to_string(h.cores),
                    bytes_text(h.memory_free), bytes_text(h.shared_memory),
                    h.open_files < 0 ? "no limit" : std::to_string(h.open_files), bytes_text(h.disk_free),
                    fmt::format("{}", fmt::join(h.interfaces, ", ")),
                    h.devices.empty() ? "none" : std::to_string(h.devices.size())});
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t k = 0; k < row.size(); ++k) {
      size_t widest = 0;
      for (const auto& r : rows) widest = std::max(widest, r[k].size());
      line += fmt::format("{:<{}}  ", row[k], widest);
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  }
  return out;
}

void require_ready_hosts(const std::vector<HostSlots>& hosts, int ssh_port) {
  if (needs_check(hosts)) require_ready(collect_facts(names_of(hosts), {}, ssh_port));
}

ReadyCheck::ReadyCheck(const std::vector<HostSlots>& hosts, int ssh_port) {
  if (needs_check(hosts))
    run_ = std::make_unique<HostRun>(names_of(hosts), facts_command({}), ssh_port, kAnswerSeconds);
}

ReadyCheck::~ReadyCheck() = default;

bool ReadyCheck::done() { return run_ == nullptr || run_->done(); }

void ReadyCheck::require() {
  if (run_ != nullptr) require_ready(report_of(run_->answers()));
}

}  // namespace gt
