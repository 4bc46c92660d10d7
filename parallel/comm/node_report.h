// What the stall monitors of one machine send to those of another: the ranks as stall_report.h reads them, in bytes.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/stall_report.h"

namespace gt {

struct NodeReport {
  std::string host;
  std::string verdict;  // first line about a rank of that machine that died; "": none
  std::vector<RankView> ranks;
};

constexpr size_t kMaxReportBytes = 4 << 20;

// Times of calls are sent as ages: each machine has a clock of its own. `now`: steady_ns there and here.
std::string encode(const NodeReport&, int64_t now);
// nullopt for anything that encode cannot have written.
std::optional<NodeReport> decode(std::string_view, int64_t now);

}  // namespace gt
