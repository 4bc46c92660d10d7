#include "launch/hosts/rank_slots.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "kernels/core/check.h"
#include "kernels/core/host.h"
#include "launch/hosts/launch_config.h"
#include "launch/options/json_text.h"

namespace gt {
namespace {

// Removes and returns the item before the first separator.
std::string_view take_piece(std::string_view& text, char separator) {
  const size_t end = std::min(text.find(separator), text.size());
  const std::string_view piece = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return piece;
}

// Returns the cores in the affinity mask of this process.
std::vector<int> allowed_cores() {
  cpu_set_t set;
  std::vector<int> out;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return out;
  for (int c = 0; c < CPU_SETSIZE; ++c)
    if (CPU_ISSET(c, &set)) out.push_back(c);
  return out;
}

// Returns the intersection of both; all of `allowed` if that is empty.
std::vector<int> usable(const std::vector<int>& requested, const std::vector<int>& allowed) {
  std::vector<int> out;
  std::set_intersection(requested.begin(), requested.end(), allowed.begin(), allowed.end(), std::back_inserter(out));
  return out.empty() ? allowed : out;
}

}  // namespace

std::string slots_text(const std::vector<HostSlots>& hosts) {
  std::string out;
  for (const HostSlots& h : hosts) out += fmt::format("{}{}", out.empty() ? "" : ";", fmt::join(h.slots, ","));
  return out;
}

std::vector<int> slots_of_rank(std::string_view text, int rank) {
  while (!text.empty()) {
    std::string_view machine = take_piece(text, ';');
    std::vector<int> slots;
    while (!machine.empty()) {
      int64_t n;
      if (!parse_int(take_piece(machine, ','), n) || n < 0) return {};
      slots.push_back(static_cast<int>(n));
    }
    if (rank < static_cast<int>(slots.size())) return slots;
    rank -= static_cast<int>(slots.size());
  }
  return {};
}

std::vector<int> parse_core_list(std::string_view text) {
  constexpr int64_t kMost = CPU_SETSIZE - 1;
  std::vector<int> out;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view piece = take_piece(rest, ',');
    const size_t dash = piece.find('-');
    int64_t first = 0, last = 0;
    const bool good = parse_int(piece.substr(0, dash), first) &&
                      (dash == std::string_view::npos || parse_int(piece.substr(dash + 1), last));
    if (dash == std::string_view::npos) last = first;
    GT_REQUIRE(good && first >= 0 && first <= last && last <= kMost, Exit::kUsage,
               "expected cores as in 0-3,8, each at most ", kMost, ", found \"", piece, "\"");
    for (int64_t c = first; c <= last; ++c) out.push_back(static_cast<int>(c));
  }
  GT_REQUIRE(!out.empty() && text.back() != ',', Exit::kUsage, "expected cores as in 0-3,8, found \"", text, "\"");
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

std::vector<int> share_of_cores(const std::vector<int>& cores, int k, int n) {
  const auto c = static_cast<int>(cores.size());
  GT_REQUIRE(c >= n, Exit::kUsage, "launch.bind_cores: ", n, " ranks on ", host_name(), ", but ", c,
             c == 1 ? " core" : " cores", " for them; start fewer, widen launch.core_list, or leave it out");
  return {cores.begin() + k * c / n, cores.begin() + (k + 1) * c / n};
}

std::string gpus_of(const std::vector<int>& slots) {
  const std::vector<std::string> gpus = visible_gpus();
  std::string out;
  for (const int slot : slots)
    if (static_cast<size_t>(slot) < gpus.size()) out += (out.empty() ? "" : ",") + gpus[static_cast<size_t>(slot)];
  return out;
}

std::vector<int> cores_of(const LaunchConfig& launch, const std::vector<int>& slots, int local_rank, int local_ranks) {
  const bool named = !launch.include.empty() || !launch.exclude.empty(), listed = !launch.core_list.empty();
  const bool by_slot = named && !slots.empty() && visible_gpus().empty();
  if (!by_slot && !listed && !launch.bind_cores) return {};
  std::vector<int> cores = allowed_cores();
  if (by_slot) cores = usable(slots, cores);
  if (listed) cores = usable(parse_core_list(launch.core_list), cores);
  return launch.bind_cores ? share_of_cores(cores, local_rank, std::max(1, local_ranks)) : cores;
}

void restrict_to_slots(const LaunchConfig& launch, const std::vector<int>& slots, int local_rank, int local_ranks) {
  if (const std::string gpus = gpus_of(slots); !gpus.empty()) setenv("CUDA_VISIBLE_DEVICES", gpus.c_str(), 1);
  const std::vector<int> cores = cores_of(launch, slots, local_rank, local_ranks);
  if (cores.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int c : cores) CPU_SET(static_cast<size_t>(c), &set);
  GT_REQUIRE(sched_setaffinity(0, sizeof set, &set) == 0, Exit::kUsage, "cannot bind to the chosen cores of ",
             host_name(), "; choose others with --include or launch.core_list");
}

}  // namespace gt
