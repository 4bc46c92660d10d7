// Single changes of a planned config: which make it fit, and which make it faster.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "launch/tools/plan/run_plan.h"

namespace gt {

struct PlanChange {
  std::string flags;  // as typed
  RunPlan plan;
};

// A legal change of one decision on the same devices: recomputation, micro_batch, ZeRO stage, sequence parallelism, tp
// against dp, pp against dp, model chunks.
struct ChangedConfig {
  std::string flags;
  Config config;
};
std::vector<ChangedConfig> single_changes(const Config&);

// Returns the plans of the changes, without those that do not fit or whose time is unknown; fastest first.
std::vector<PlanChange> changes_that_fit(const Config&, const std::function<RunPlan(const Config&)>& plan);

// Text block of --why: the limiting term, then up to three changes that fit or that are at least 1 % faster.
std::string why_text(const RunPlan&, const std::vector<PlanChange>&);

// One line for each ZeRO stage of the layout: bytes a parameter, and of a rank's weights, gradients and optimizer state
// (Rajbhandari et al. 2020, arXiv 1910.02054, figure 1).
std::string zero_table(const Config&);

}  // namespace gt
