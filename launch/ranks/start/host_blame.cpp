#include "launch/ranks/start/host_blame.h"

#include <algorithm>
#include <cctype>

#include "kernels/core/check.h"

namespace gt {
namespace {

bool digit(std::string_view s, size_t at) { return at < s.size() && std::isdigit(static_cast<unsigned char>(s[at])); }

// Parses a comma-separated list of numbers, each optionally followed by text in parentheses, starting at `at`.
std::vector<int> numbers_at(std::string_view s, size_t at) {
  std::vector<int> out;
  while (digit(s, at)) {
    int n = 0;
    for (; digit(s, at) && n < 10000000; ++at) n = 10 * n + (s[at] - '0');
    out.push_back(n);
    if (s.substr(at, 2) == " (") at = std::min(s.find(')', at), s.size() - 1) + 1;
    if (s.substr(at, 2) != ", ") break;
    at += 2;
  }
  return out;
}

}  // namespace

std::vector<int> blamed_ranks(std::string_view verdict) {
  if (verdict.rfind("stalled: ", 0) == 0 && verdict.rfind("stalled: not arrived: ", 0) != 0) return {};
  for (size_t at = verdict.find("rank"); at != std::string_view::npos; at = verdict.find("rank", at + 1)) {
    const size_t number = at + (verdict.substr(at, 6) == "ranks " ? 6 : 5);
    if (verdict.substr(at, 5) != "rank " && verdict.substr(at, 6) != "ranks ") continue;
    if (digit(verdict, number)) return numbers_at(verdict, number);
  }
  return {};
}

std::string host_of_rank(const std::vector<HostSlots>& hosts, int rank) {
  for (const HostSlots& h : hosts) {
    if (rank < static_cast<int>(h.slots.size())) return h.host;
    rank -= static_cast<int>(h.slots.size());
  }
  return "";
}

std::vector<std::string> blamed_hosts(std::string_view verdict, const std::vector<HostSlots>& hosts) {
  std::vector<std::string> out;
  const auto add = [&](const std::string& host) {
    if (!host.empty() && std::find(out.begin(), out.end(), host) == out.end()) out.push_back(host);
  };
  for (const int rank : blamed_ranks(verdict)) add(host_of_rank(hosts, rank));
  constexpr std::string_view kLost = "lost: ";
  if (verdict.substr(0, kLost.size()) == kLost) {
    const std::string_view rest = verdict.substr(kLost.size());
    const std::string_view word = rest.substr(0, rest.find_first_of(" :"));
    for (const HostSlots& h : hosts)
      if (h.host == word) add(h.host);
  }
  return out;
}

std::string HostBlame::after(int code, const std::string& verdict, const std::vector<HostSlots>& hosts, int world) {
  const std::vector<std::string> all = blamed_hosts(verdict, hosts);
  if (all.size() != 1) return "";  // several machines: no single one is at fault
  const std::string& host = all.front();
  const int times = ++named_[host];
  if (times < 2 && code != static_cast<int>(Exit::kHardware)) return "";
  int left = 0;
  for (const HostSlots& h : hosts)
    if (h.host != host) left += static_cast<int>(h.slots.size());
  return left >= world ? host : "";
}

}  // namespace gt
