#include "launch/observe/param_stats.h"

#include <algorithm>
#include <cmath>

#include "parallel/comm/host_values.h"
#include "parallel/zero/shard_copy.h"

namespace gt {
namespace {

constexpr double kLeast = 1e-12, kGrowth = 1.1;

// Calls back with each element that belongs to the logical tensor: not the padding of a vocabulary.
template <class F>
void for_each_element(const ShardView& v, F f) {
  for (int64_t i = 0; i < v.data.numel(); ++i)
    if (v.pad_rows == 0 || logical_offset(v, v.begin + i) >= 0) f(static_cast<size_t>(i));
}

}  // namespace

int LogBins::bin_of(double x) {
  if (x == 0) return kPerSign;
  const double k = std::ceil(std::log(std::fabs(x) / kLeast) / std::log(kGrowth) - 1e-9);
  const int magnitude = static_cast<int>(std::clamp(k, 0., kPerSign - 1.));
  return x > 0 ? kPerSign + 1 + magnitude : kPerSign - 1 - magnitude;
}

double LogBins::upper_limit(int bin) {
  if (bin == kPerSign) return 0;
  if (bin > kPerSign) return kLeast * std::pow(kGrowth, bin - kPerSign - 1);
  const int magnitude = kPerSign - 1 - bin;  // numbers between -kLeast kGrowth^m and -kLeast kGrowth^(m-1)
  return magnitude == 0 ? -kLeast / kGrowth : -kLeast * std::pow(kGrowth, magnitude - 1);
}

void LogBins::add(double x, double* numbers) {
  if (!std::isfinite(x)) {
    ++numbers[kBins + 2];
    return;
  }
  ++numbers[bin_of(x)];
  numbers[kBins] += x;
  numbers[kBins + 1] += x * x;
}

Histogram LogBins::histogram(const double* numbers, double min, double max) {
  Histogram h{.min = min, .max = max, .sum = numbers[kBins], .sum_squares = numbers[kBins + 1]};
  int first = 0, last = kBins - 1;
  while (first < last && numbers[first] == 0) ++first;
  while (last > first && numbers[last] == 0) --last;
  for (int b = first; b <= last; ++b) {
    h.limits.push_back(upper_limit(b));
    h.buckets.push_back(numbers[b]);
    h.count += numbers[b];
  }
  return h;
}

ParamStats::ParamStats(Engine& engine, const Backend& backend, Stream stream)
    : engine_(engine), backend_(backend), stream_(stream) {
  for (const ParamSpec& p : engine.spec().params) params_.emplace(p.name, params_.size());
}

std::vector<ShardView> ParamStats::saved(std::vector<ShardView> views) const {
  std::erase_if(views, [](const ShardView& v) { return !v.save; });
  return views;
}

ParamStats::Values ParamStats::fetch(const std::vector<ShardView>& views) const {
  Values out;
  for (const ShardView& v : views) {
    out.emplace_back(static_cast<size_t>(v.data.numel()));
    fetch_view(v, out.back().data(), backend_, stream_);
  }
  return out;
}

size_t ParamStats::param_of(const ShardView& v) const {
  const auto it = params_.find(v.name.substr(v.name.find('/') + 1));
  GT_CHECK(it != params_.end(), "no parameter ", v.name);
  return it->second;
}

void ParamStats::before_step() { before_ = fetch(saved(engine_.store().value_views())); }

ParamStats::Summary ParamStats::after_step(int64_t step, bool histograms, double grad_scale) {
  const std::vector<ShardView> views = saved(engine_.store().value_views());
  const Values after = fetch(views);
  ProcessGroup& world = engine_.mesh().world();
  std::vector<double> squares(2 * params_.size(), 0);  // of values and updates, by parameter
  for (size_t k = 0; k < views.size(); ++k) {
    double* mine = &squares[2 * param_of(views[k])];
    for_each_element(views[k], [&](size_t i) {
      const double now = static_cast<double>(after[k][i]), change = now - static_cast<double>(before_[k][i]);
      mine[0] += now * now;
      mine[1] += change * change;
    });
  }
  squares = sum_over(world, std::move(squares));
  Summary out;
  for (size_t p = 0; p < params_.size(); ++p) {
    out.param_norm += squares[2 * p];
    out.update_norm += squares[2 * p + 1];
  }
  out.param_norm = std::sqrt(out.param_norm);
  out.update_norm = std::sqrt(out.update_norm);
  before_.clear();
  if (!histograms) return out;
  add_histograms("weight", views, after, 1, step, out);
  const std::vector<ShardView> grads = saved(engine_.store().grad_views());
  add_histograms("grad", grads, fetch(grads), grad_scale, step, out);
  std::vector<double> ratios(LogBins::kNumbers, 0);
  double least = INFINITY, most = -INFINITY;
  for (size_t p = 0; p < params_.size(); ++p) {
    if (squares[2 * p] == 0) continue;
    const double ratio = std::sqrt(squares[2 * p + 1] / squares[2 * p]);
    LogBins::add(ratio, ratios.data());
    least = std::min(least, ratio), most = std::max(most, ratio);
  }
  out.histograms.push_back({step, wall_seconds(), "hist/update_ratio",
                            std::make_shared<const Histogram>(LogBins::histogram(ratios.data(), least, most))});
  return out;
}

void ParamStats::add_histograms(const std::string& kind, const std::vector<ShardView>& views, const Values& values,
                                double scale, int64_t step, Summary& out) {
  const size_t n = params_.size(), each = LogBins::kNumbers;
  std::vector<double> counts(n * each, 0), extent(2 * n, -INFINITY);  // extent: -min and max, by parameter
  for (size_t k = 0; k < views.size(); ++k) {
    const size_t p = param_of(views[k]);
    for_each_element(views[k], [&](size_t i) {
      const double x = scale * static_cast<double>(values[k][i]);
      LogBins::add(x, &counts[p * each]);
      if (!std::isfinite(x)) return;
      extent[2 * p] = std::max(extent[2 * p], -x);
      extent[2 * p + 1] = std::max(extent[2 * p + 1], x);
    });
  }
  ProcessGroup& world = engine_.mesh().world();
  counts = sum_over(world, std::move(counts));
  extent = max_over(world, std::move(extent));
  const double now = wall_seconds();
  for (const auto& [name, p] : params_) {
    const double* numbers = &counts[p * each];
    out.nonfinite += numbers[LogBins::kBins + 2];
    if (extent[2 * p] == -INFINITY) continue;  // a tied copy, or no finite number
    out.histograms.push_back(
        {step, now, "hist/" + kind + "/" + name,
         std::make_shared<const Histogram>(LogBins::histogram(numbers, -extent[2 * p], extent[2 * p + 1]))});
  }
}

}  // namespace gt
