// Report that the stall monitor of one machine sends to another's: its ranks as read by stall_report.h, serialized.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/watch/stall_report.h"

namespace gt {

struct NodeReport {
  std::string host;
  std::string verdict;  // first line about a dead rank of that machine; "": none
  std::vector<RankView> ranks;
};

constexpr size_t kMaxReportBytes = 4 << 20;

// Times of calls are sent as ages, because every machine has its own clock. `now`: steady_ns on either side.
std::string encode(const NodeReport&, int64_t now);
// Returns nullopt for anything that encode cannot have written.
std::optional<NodeReport> decode(std::string_view, int64_t now);

}  // namespace gt
