#include "launch/hosts/hostfile.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <set>

#include "kernels/core/check.h"
#include "launch/hosts/launch_config.h"
#include "launch/options/json_text.h"

namespace gt {
namespace {

constexpr int64_t kMostSlots = 65536;
constexpr const char* kUsualHostfile = "/job/hostfile";

std::vector<std::string_view> split(std::string_view s, char separator) {
  std::vector<std::string_view> out;
  for (size_t i = 0; i <= s.size();) {
    const size_t end = std::min(s.find(separator, i), s.size());
    out.push_back(s.substr(i, end - i));
    i = end + 1;
  }
  return out;
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> out;
  constexpr const char* kBlank = " \t\r";
  for (size_t i = line.find_first_not_of(kBlank); i != std::string_view::npos;) {
    const size_t end = std::min(line.find_first_of(kBlank, i), line.size());
    out.push_back(line.substr(i, end - i));
    i = line.find_first_not_of(kBlank, end);
  }
  return out;
}

// Parses "slots=4" as 4; returns 0 if `word` is not of this form.
int64_t number_after(std::string_view word, std::string_view name) {
  int64_t n;
  if (word.substr(0, name.size()) != name || word.substr(name.size(), 1) != "=") return 0;
  const std::string_view digits = word.substr(name.size() + 1);
  if (digits.find_first_not_of("0123456789") != std::string_view::npos) return 0;  // rejects "+2"
  return parse_int(digits, n) && n >= 1 && n <= kMostSlots ? n : 0;
}

bool consists_of(std::string_view s, const char* signs) {
  constexpr std::string_view kLettersAndDigits = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  return !s.empty() && s.find_first_not_of(std::string(kLettersAndDigits) + signs) == std::string_view::npos;
}

// Accepts a host for ssh and mpirun: gpu-07.example.org, 10.0.0.7, [fe80::1%eth0], user@gpu. Rejects what ssh would
// parse as an option ("-oProxyCommand=…") or mpirun as several hosts (commas).
bool is_host_name(std::string_view name) {
  const size_t at = name.rfind('@');
  if (at != std::string_view::npos) {
    const std::string_view user = name.substr(0, at);
    if (!consists_of(user, "._-") || user[0] == '-') return false;
    name.remove_prefix(at + 1);
  }
  if (name.size() > 2 && name.front() == '[' && name.back() == ']')
    return consists_of(name.substr(1, name.size() - 2), ":.%_");
  return name.size() <= 253 && consists_of(name, "._-") && name[0] != '-';
}

// Splits a filter at each '@' that separates two terms. A host name may contain '@' itself: user@gpu.
std::vector<std::string_view> filter_pieces(const std::vector<HostSlots>& hosts, std::string_view filter) {
  std::vector<std::string_view> out;
  for (;;) {
    size_t own = 0;
    for (const HostSlots& h : hosts) {
      const std::string_view rest = filter.substr(std::min(h.host.size(), filter.size()));
      if (filter.substr(0, h.host.size()) == h.host && (rest.empty() || rest[0] == ':' || rest[0] == '@'))
        own = std::max(own, h.host.size());
    }
    const size_t end = filter.find('@', own);
    out.push_back(filter.substr(0, end));
    if (end == std::string_view::npos) return out;
    filter.remove_prefix(end + 1);
  }
}

std::vector<int> first_slots(int64_t n) {
  std::vector<int> out(static_cast<size_t>(n));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

// Returns the slots that one filter selects on each host, in the order of `hosts`.
std::vector<std::set<int>> named_slots(const std::vector<HostSlots>& hosts, const std::string& filter,
                                       const std::string& flag) {
  std::vector<std::set<int>> named(hosts.size());
  for (const std::string_view piece : filter_pieces(hosts, filter)) {
    const auto malformed = [&] {
      fail(Exit::kUsage, flag, ": expected NODE or NODE:SLOT,SLOT, found \"", piece.empty() ? filter : piece, "\"");
    };
    const size_t colon = piece.find(':', piece.find(']') == std::string_view::npos ? 0 : piece.find(']'));
    const std::string_view host = piece.substr(0, colon);
    if (host.empty()) malformed();
    const auto at = std::find_if(hosts.begin(), hosts.end(), [&](const HostSlots& h) { return h.host == host; });
    GT_REQUIRE(at != hosts.end(), Exit::kUsage, flag, ": Hostname '", host, "' not found in hostfile");
    std::set<int>& out = named[static_cast<size_t>(at - hosts.begin())];
    if (colon == std::string_view::npos) {
      out.insert(at->slots.begin(), at->slots.end());
      continue;
    }
    for (const std::string_view slot : split(piece.substr(colon + 1), ',')) {
      int64_t n;
      if (!parse_int(slot, n)) malformed();
      GT_REQUIRE(std::find(at->slots.begin(), at->slots.end(), n) != at->slots.end(), Exit::kUsage, flag, ": No slot '",
                 slot, "' specified on host '", host, "'");
      out.insert(static_cast<int>(n));
    }
  }
  return named;
}

}  // namespace

std::vector<HostSlots> parse_hostfile(std::string_view text, const std::string& name) {
  std::vector<HostSlots> hosts;
  int number = 0;
  if (text.substr(0, 3) == "\xEF\xBB\xBF") text.remove_prefix(3);  // byte-order mark
  for (const std::string_view line : split(text, '\n')) {
    ++number;
    const std::string_view entry = line.substr(0, line.find('#'));
    const std::vector<std::string_view> words = words_of(entry);
    if (words.empty()) continue;
    const int64_t slots = words.size() > 1 ? number_after(words[1], "slots") : 0;
    const bool most = words.size() < 3 || number_after(words[2], "max_slots") >= slots;
    GT_REQUIRE(slots > 0 && most && words.size() <= 3, Exit::kUsage, name, ":", number,
               ": Hostfile contains a bad entry: ", fmt::format("{}", fmt::join(words, " ")).substr(0, 200),
               "; expected HOST slots=N with N from 1 to ", kMostSlots, ", then optionally max_slots=M with M from N");
    GT_REQUIRE(is_host_name(words[0]), Exit::kUsage, name, ":", number, ": \"", words[0].substr(0, 200),
               "\" is not a valid host name; expected letters, digits, '.', '_' and '-' (not first), or an address as "
               "in 10.0.0.7 or [fe80::1], optionally with USER@ before it");
    for (const HostSlots& h : hosts)
      GT_REQUIRE(h.host != words[0], Exit::kUsage, name, ":", number, ": Hostfile contains multiple entries for ",
                 words[0]);
    hosts.push_back({std::string(words[0]), first_slots(slots)});
  }
  GT_REQUIRE(!hosts.empty(), Exit::kUsage, name,
             ": Hostfile is empty or not formatted correctly; expected lines HOST slots=N");
  return hosts;
}

std::vector<std::string> visible_gpus() {
  std::vector<std::string> out;
  if (const char* list = std::getenv("CUDA_VISIBLE_DEVICES")) {
    for (const std::string_view id : split(list, ','))
      if (!id.empty()) out.emplace_back(id);
    return out;
  }
  std::error_code ec;
  for (int i = 0; std::filesystem::exists(fmt::format("/dev/nvidia{}", i), ec); ++i) out.push_back(std::to_string(i));
  return out;
}

std::vector<HostSlots> this_machine() {
  if (const auto gpus = visible_gpus(); !gpus.empty())
    return {{"localhost", first_slots(static_cast<int64_t>(gpus.size()))}};
  HostSlots here{"localhost", {}};
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int c = 0; c < CPU_SETSIZE; ++c)
      if (CPU_ISSET(c, &set)) here.slots.push_back(c);
  if (here.slots.empty()) here.slots = {0};
  return {here};
}

std::vector<HostSlots> filter_hosts(const std::vector<HostSlots>& hosts, const std::string& include,
                                    const std::string& exclude) {
  GT_REQUIRE(include.empty() || exclude.empty(), Exit::kUsage,
             "--include and --exclude: include and exclude are mutually exclusive");
  if (include.empty() && exclude.empty()) return hosts;
  const bool keep = !include.empty();
  const auto named = named_slots(hosts, keep ? include : exclude, keep ? "--include" : "--exclude");
  std::vector<HostSlots> out;
  for (size_t i = 0; i < hosts.size(); ++i) {
    HostSlots left{hosts[i].host, {}};
    for (const int slot : hosts[i].slots)
      if ((named[i].count(slot) > 0) == keep) left.slots.push_back(slot);
    if (!left.slots.empty()) out.push_back(std::move(left));
  }
  GT_REQUIRE(!out.empty(), Exit::kUsage, keep ? "--include" : "--exclude", ": no slots left");
  return out;
}

int total_slots(const std::vector<HostSlots>& hosts) {
  size_t n = 0;
  for (const HostSlots& h : hosts) n += h.slots.size();
  return static_cast<int>(n);
}

bool is_this_machine(const std::string& host) {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return host == "localhost" || host == "127.0.0.1" || host == "::1" || host == name;
}

std::string host_with_ranks(const std::vector<HostSlots>& hosts, const std::string& host, int world) {
  std::string ranks;
  int count = 0, rank = 0;
  for (const HostSlots& h : hosts)
    for (size_t s = 0; s < h.slots.size() && rank < world; ++s, ++rank)
      if (h.host == host) ranks += cat(count++ == 0 ? "" : ", ", rank);
  return count == 0 ? host : cat(host, count == 1 ? " (rank " : " (ranks ", ranks, ")");
}

std::vector<HostSlots> hosts_in_use(const std::vector<HostSlots>& hosts, int world) {
  std::vector<HostSlots> out;
  for (const HostSlots& h : hosts) {
    if (total_slots(out) >= world) break;
    out.push_back(h);
  }
  return out;
}

std::vector<HostSlots> chosen_hosts(const LaunchConfig& launch) {
  std::error_code ec;
  std::string file = launch.hostfile;
  if (file.empty() && std::filesystem::exists(kUsualHostfile, ec)) file = kUsualHostfile;
  const bool filtered = !launch.include.empty() || !launch.exclude.empty();
  const bool counted = launch.num_nodes > 0 || launch.num_slots > 0;
  if (file.empty() && !filtered && !counted) return {};
  GT_REQUIRE(!filtered || !counted, Exit::kUsage,
             "--include and --exclude cannot be combined with --num_nodes and --num_gpus: both select slots");
  std::vector<HostSlots> hosts = file.empty() ? this_machine() : parse_hostfile(read_json_file(file), file);
  const auto nodes = static_cast<size_t>(launch.num_nodes), slots = static_cast<size_t>(launch.num_slots);
  GT_REQUIRE(nodes <= hosts.size(), Exit::kUsage, "--num_nodes: ", nodes, ", but there are ", hosts.size());
  if (nodes > 0) hosts.resize(nodes);
  for (HostSlots& h : hosts) {
    GT_REQUIRE(slots <= h.slots.size(), Exit::kUsage, "--num_gpus: ", slots, ", but ", h.host, " has ", h.slots.size(),
               " slots");
    if (slots > 0) h.slots.resize(slots);
  }
  return filter_hosts(hosts, launch.include, launch.exclude);
}

bool is_local_only(const std::vector<HostSlots>& hosts) {
  return std::all_of(hosts.begin(), hosts.end(), [](const HostSlots& h) { return is_this_machine(h.host); });
}

}  // namespace gt
