// gpttrain check: checks the hosts of a job before its start: ssh, program, MPI daemon, files, shared run folder,
// limits, free memory and disk, clocks, networks, GPUs. Then measures latency and bandwidth between each pair of hosts.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

#include "data/tokenizer/tokenizer_files.h"
#include "data/tokens/token_file.h"
#include "kernels/core/host.h"
#include "launch/commands/cli.h"
#include "launch/commands/subcommand_args.h"
#include "launch/commands/subcommands.h"
#include "launch/options/output.h"
#include "launch/ranks/start/host_facts.h"
#include "launch/ranks/start/host_probe.h"
#include "parallel/comm/host_values.h"

namespace gt {
namespace {

namespace fs = std::filesystem;

// Temporary file in the run folder, or in its nearest existing parent; removed by the destructor.
class Marker {
 public:
  explicit Marker(const std::string& run_dir) {
    fs::path folder = fs::absolute(run_dir);
    for (std::error_code ec; !fs::is_directory(folder, ec) && folder != folder.parent_path();)
      folder = folder.parent_path();
    path_ = (folder / ".gpttrain-check-XXXXXX").string();
    const int fd = mkstemp(path_.data());
    GT_REQUIRE(fd >= 0, Exit::kIo, folder.string(), ": cannot write here: ", std::strerror(errno));
    const bool written = write(fd, path_.data(), path_.size()) == static_cast<ssize_t>(path_.size());
    close(fd);
    if (!written) unlink(path_.c_str());
    GT_REQUIRE(written, Exit::kIo, folder.string(), ": cannot write here: ", std::strerror(errno));
  }
  ~Marker() { unlink(path_.c_str()); }
  Marker(const Marker&) = delete;
  Marker& operator=(const Marker&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Returns the files that every rank opens: a text, or both files of a prefix.
std::vector<std::string> files_of(const Config& c, const std::vector<std::string>& more) {
  std::vector<std::string> out = more;
  std::vector<DataSource> sources = c.data.train;
  sources.insert(sources.end(), c.data.valid.begin(), c.data.valid.end());
  for (const DataSource& s : sources) {
    if (s.path == "mock") continue;
    if (const std::string prefix = token_prefix(s.path); missing_token_files(prefix).empty())
      out.insert(out.end(), {prefix + ".bin", prefix + ".idx"});
    else
      out.push_back(s.path);
  }
  if (!c.data.tokenizer.empty())
    for (std::string& path : tokenizer_paths(c.data.tokenizer)) out.push_back(std::move(path));
  return out;
}

struct Link {
  double latency = 0, bytes_per_second = 0;
};

// Round-robin tournament: each rank has at most one partner per round, and every pair meets once.
std::vector<std::vector<std::pair<int, int>>> rounds_of(int ranks) {
  const int n = ranks + ranks % 2;
  std::vector<std::vector<std::pair<int, int>>> out;
  for (int round = 0; round < n - 1; ++round) {
    std::vector<std::pair<int, int>> pairs{{round, n - 1}};
    for (int k = 1; k < n / 2; ++k) pairs.emplace_back((round + k) % (n - 1), (round + n - 1 - k) % (n - 1));
    std::erase_if(pairs, [&](const auto& p) { return p.first >= ranks || p.second >= ranks; });
    for (auto& [a, b] : pairs)
      if (a > b) std::swap(a, b);
    out.push_back(std::move(pairs));
  }
  return out;
}

// Called by both ends. Ping-pong of one-byte messages, then of 8 MiB messages.
Link measure(ProcessGroup& world, int partner, bool first) {
  constexpr int kPings = 50, kTag = 3;
  constexpr int64_t kBytes = 8 << 20;
  std::vector<std::byte> memory(kBytes);
  const auto tensor = [&](int64_t bytes) { return Tensor{memory.data(), {bytes}, DType::kByte, {}}; };
  const auto exchange = [&](int64_t bytes) {  // round trip
    const double begin = now();
    if (first) world.send(tensor(bytes), partner, kTag, {}).wait({});
    world.recv(tensor(bytes), partner, kTag, {}).wait({});
    if (!first) world.send(tensor(bytes), partner, kTag, {}).wait({});
    return now() - begin;
  };
  std::vector<double> pings, moves;
  exchange(kBytes);  // warm-up: connections
  for (int k = 0; k < kPings; ++k) pings.push_back(exchange(1) / 2);
  for (int k = 0; k < 3; ++k) moves.push_back(exchange(kBytes) / 2);
  std::sort(pings.begin(), pings.end());
  std::sort(moves.begin(), moves.end());
  return {pings[kPings / 2], static_cast<double>(kBytes) / moves[1]};
}

// In rounds in which every rank has one partner: all pairs at once would share the link of a host.
Exit links_of_rank(GroupFactory& factory) {
  const int n = factory.world_size(), rank = factory.world_rank();
  std::vector<int> all(static_cast<size_t>(n));
  for (int r = 0; r < n; ++r) all[static_cast<size_t>(r)] = r;
  const auto world = factory.make(all);
  std::vector<double> mine(static_cast<size_t>(2 * n * n));  // [pair][latency, bandwidth], all-reduced over the ranks
  for (const auto& round : rounds_of(n)) {
    world->barrier();
    for (const auto& [a, b] : round) {
      if (rank != a && rank != b) continue;
      const Link link = measure(*world, rank == a ? b : a, rank == a);
      if (rank != a) continue;
      mine[static_cast<size_t>(2 * (a * n + b))] = link.latency;
      mine[static_cast<size_t>(2 * (a * n + b) + 1)] = link.bytes_per_second;
    }
  }
  mine = sum_over(*world, std::move(mine));
  std::array<char, 64> host{};
  host_name().copy(host.data(), host.size() - 1);
  const auto names = gather_values(*world, host);
  if (rank != 0) return Exit::kOk;
  const auto name = [&](int r) { return std::string(names[static_cast<size_t>(r)].data()); };
  fmt::print("\n{:<32} {:>10} {:>12}\n", "link", "latency", "bandwidth");
  for (int a = 0; a < n; ++a)
    for (int b = a + 1; b < n; ++b)
      fmt::print("{:<32} {:>7.0f} us {:>10}/s\n", name(a) + " - " + name(b),
                 1e6 * mine[static_cast<size_t>(2 * (a * n + b))],
                 format_bytes(mine[static_cast<size_t>(2 * (a * n + b) + 1)]));
  std::fflush(stdout);
  return Exit::kOk;
}

// Runs one rank on each host, started like the ranks of the job.
Exit measure_links(const Command& command, const std::vector<HostSlots>& hosts) {
  const Config& c = command.loaded.config;
  std::string include;
  for (const HostSlots& h : hosts)
    include += fmt::format("{}{}:{}", include.empty() ? "" : "@", h.host, h.slots.front());
  std::vector<std::string> words{"check", "--links", "--launch.include", include};
  const auto pass = [&](const char* flag, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {flag, value});
  };
  pass("--launch.hostfile", c.launch.hostfile);
  pass("--comm.interface", c.comm.interface);
  pass("--launch.launcher_args", c.launch.launcher_args);
  if (c.launch.ssh_port > 0) pass("--launch.ssh_port", std::to_string(c.launch.ssh_port));
  return run_ranks(parse_command(words, command.env), links_of_rank);
}

}  // namespace

Exit run_check(const Command& command) {
  const auto& args = command.get<CheckArgs>();
  const Config& c = command.loaded.config;
  if (args.here) {
    write_out(to_json(facts_here({args.file, args.folder, args.marker})) + "\n");
    return flush_out(), Exit::kOk;
  }
  if (args.links) return run_ranks(command, links_of_rank);
  GT_REQUIRE(!other_agent_than_ssh(), Exit::kUsage,
             "check queries hosts over ssh, but OMPI_MCA_plm_rsh_agent selects another agent");
  std::vector<HostSlots> hosts = chosen_hosts(c.launch);
  if (hosts.empty()) hosts = {{host_name(), {0}}};
  std::vector<std::string> names;
  for (const HostSlots& h : hosts) names.push_back(h.host);
  const Marker marker(c.run_dir());
  const HostReport report =
      collect_facts(names, {files_of(c, args.file), c.run_dir(), marker.path()}, static_cast<int>(c.launch.ssh_port));
  std::vector<int> ranks;
  for (const HostFacts& h : report.facts)
    for (const HostSlots& s : hosts)
      if (s.host == h.host) ranks.push_back(static_cast<int>(s.slots.size()));
  write_out(facts_table(report.facts, ranks));
  std::vector<std::string> problems = report.problems;
  const int threads = static_cast<int>(std::max<int64_t>(1, c.device.threads));
  for (std::string& p : differences(report.facts, ranks, threads, !c.comm.interface.empty(), report.seconds))
    problems.push_back(std::move(p));
  if (!problems.empty()) {
    write_out(fmt::format("\n{}:\n  {}\n",
                          problems.size() == 1 ? "1 problem" : fmt::format("{} problems", problems.size()),
                          fmt::join(problems, "\n  ")));
    flush_out();
  }
  if (!report.problems.empty()) return report.unreachable ? Exit::kHardware : Exit::kUsage;
  flush_out();
  const Exit links = hosts.size() > 1 ? measure_links(command, hosts) : Exit::kOk;
  if (problems.empty() && links == Exit::kOk)
    fmt::print("\n{} ready\n", hosts.size() == 1 ? "1 host is" : fmt::format("{} hosts are", hosts.size()));
  return links != Exit::kOk ? links : problems.empty() ? Exit::kOk : Exit::kUsage;
}

}  // namespace gt
