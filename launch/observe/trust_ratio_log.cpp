#include "launch/observe/trust_ratio_log.h"

#include <algorithm>
#include <sstream>

#include "parallel/comm/host_values.h"

namespace gt {

TrustRatioLog::TrustRatioLog(const std::vector<TrustRatio>& mine, ProcessGroup& world) : world_(world) {
  std::string text;
  for (const TrustRatio& r : mine) text += r.tensor + "\n";
  const auto size = static_cast<size_t>(max_over(world, static_cast<int64_t>(text.size())));
  std::string all(size * static_cast<size_t>(world.size()), '\n');
  text.resize(size, '\n');
  world.all_gather(host_tensor(std::span(text)), host_tensor(std::span(all)), {}).wait({});
  std::istringstream lines(all);
  for (std::string line; std::getline(lines, line);)
    if (!line.empty()) names_.push_back(line);
  std::sort(names_.begin(), names_.end());
  names_.erase(std::unique(names_.begin(), names_.end()), names_.end());
}

std::vector<TrustRatio> TrustRatioLog::gather(const std::vector<TrustRatio>& mine) {
  std::vector<double> ratios(names_.size(), 0);
  for (const TrustRatio& r : mine) {
    const auto at = std::lower_bound(names_.begin(), names_.end(), r.tensor);
    GT_CHECK(at != names_.end() && *at == r.tensor, "no tensor ", r.tensor);
    ratios[static_cast<size_t>(at - names_.begin())] = static_cast<double>(r.ratio);
  }
  ratios = max_over(world_, std::move(ratios));
  std::vector<TrustRatio> out;
  for (size_t i = 0; i < names_.size(); ++i) out.push_back({names_[i], static_cast<float>(ratios[i])});
  return out;
}

}  // namespace gt
