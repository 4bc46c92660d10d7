#include "launch/observe/predict.h"

#include <algorithm>

namespace gt {

Cost stage_cost(const EngineOptions& o, int pp) {
  const auto layers = describe(o.model).layer_costs();
  const std::vector<int> bounds = stage_boundaries(o, pp);
  Cost cost;
  double sum = 0;
  for (size_t k = 0; k + 1 < bounds.size(); ++k) {
    double flops = 0, again = 0;
    int64_t block = 0;
    for (int i = bounds[k]; i < bounds[k + 1]; ++i) {
      const LayerCost& l = layers[static_cast<size_t>(i)];
      flops += static_cast<double>(l.flops);
      if (l.type != "block" || o.recompute != Recompute::kFull) continue;
      if (o.recompute_layers == 0 || block++ < o.recompute_layers) again += static_cast<double>(l.flops);
    }
    cost.stage_f.push_back(flops);
    cost.stage_b.push_back(2 * flops + again);
    sum += flops;
  }
  const double unit = std::max(sum / static_cast<double>(cost.stage_f.size()), 1.);
  for (double& f : cost.stage_f) f /= unit;
  for (double& b : cost.stage_b) b /= unit;
  return cost;
}

std::vector<double> stage_flops(const EngineOptions& o, int pp, int64_t tokens) {
  const auto layers = describe(o.model).layer_costs();
  const std::vector<int> bounds = stage_boundaries(o, pp);
  std::vector<double> out(bounds.size() - 1, 0);
  for (size_t k = 0; k + 1 < bounds.size(); ++k)
    for (int i = bounds[k]; i < bounds[k + 1]; ++i)
      out[k] += static_cast<double>(layers[static_cast<size_t>(i)].flops * tokens);
  return out;
}

Report predict_pipeline(const EngineOptions& o, int pp) { return simulate(train_schedule(o, pp), stage_cost(o, pp)); }

}  // namespace gt
