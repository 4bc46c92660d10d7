#include "launch/engine/logical.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/core/check.h"
#include "parallel/zero/shard_copy.h"

namespace gt {
namespace {
constexpr double kInfinite = std::numeric_limits<double>::infinity();
}

TensorDistance distance(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return {kInfinite, kInfinite, 0, 0};
  double diff = 0, aa = 0, bb = 0, ab = 0, most = 0;
  float largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = a[i], y = b[i];
    diff += (x - y) * (x - y);
    aa += x * x;
    bb += y * y;
    ab += x * y;
    most = std::max(most, std::abs(x - y));
    largest = std::max(largest, std::abs(b[i]));
  }
  constexpr double kTiny = 1e-30;
  const double relative = std::sqrt(diff) / std::max(std::sqrt(bb), kTiny);
  if (!std::isfinite(relative)) return {kInfinite, kInfinite, 0, 0};
  const double unit = static_cast<double>(std::nextafter(largest, std::numeric_limits<float>::max()) - largest);
  if (diff == 0) return {};
  return {relative, most / unit, ab / std::max(std::sqrt(aa) * std::sqrt(bb), kTiny),
          std::sqrt(aa) / std::max(std::sqrt(bb), kTiny)};
}

double relative_error(const std::vector<float>& a, const std::vector<float>& b) { return distance(a, b).relative; }

std::pair<std::string, double> worst_error(const Logical& a, const Logical& b) {
  std::pair<std::string, double> worst{"", 0};
  for (const Logical* side : {&a, &b})
    for (const auto& [name, unused] : *side) {
      const bool both = a.count(name) && b.count(name);
      const double e = both ? relative_error(a.at(name), b.at(name)) : kInfinite;
      if (e > worst.second) worst = {name, e};
    }
  return worst;
}

void write_views(const std::vector<ShardView>& views, const Logical& from, const Backend& backend, Stream stream) {
  std::vector<float> values;
  for (const ShardView& v : views) {
    values.assign(static_cast<size_t>(v.data.numel()), 0.f);
    const auto it = from.find(logical_name(v.name));
    GT_CHECK(it != from.end() && static_cast<int64_t>(it->second.size()) == v.full.numel(), "no tensor for ", v.name);
    const std::vector<float>& full = it->second;
    for (int64_t i = 0; i < v.data.numel(); ++i)
      if (const int64_t at = logical_offset(v, v.begin + i); at >= 0)
        values[static_cast<size_t>(i)] = full[static_cast<size_t>(at)];
    store_view(v, values.data(), backend, stream);
  }
}

std::string logical_name(const std::string& view_name) {
  return view_name.starts_with("scale/") ? view_name : view_name.substr(view_name.find('/') + 1);
}

}  // namespace gt
