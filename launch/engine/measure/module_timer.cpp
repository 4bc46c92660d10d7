#include "launch/engine/measure/module_timer.h"

#include <vector>

#include "parallel/comm/host_values.h"

namespace gt {
namespace {

// Maps "layers.3.mlp.up" to "layers.3"; returns other modules unchanged.
std::string block_of(const std::string& module) {
  if (module.rfind("layers.", 0) != 0) return module;
  return module.substr(0, module.find('.', 7));
}

}  // namespace

const std::string& counted_parameter(const std::string& parameter, OpClass kind) {
  static const std::string table = "embed.weight", head = "head.weight";
  return kind == OpClass::kGemm && parameter == table ? head : parameter;
}

void ModuleTimer::add(Leaf leaf, Direction direction, const std::string* parameter, double seconds) {
  if (direction != Direction::kNeither) backward_ = direction == Direction::kBackward;
  if (parameter != nullptr) last_ = parameter->substr(0, parameter->rfind('.'));
  const std::string module = leaf == Leaf::kAttentionCore ? block_of(last_) + ".attn.core"
                             : leaf == Leaf::kActivation  ? block_of(last_) + ".mlp.act"
                             : leaf == Leaf::kLoss        ? "head"
                                                          : last_;
  Seconds& s = modules_[module];
  (backward_ ? s.backward : s.forward) += seconds;
}

void ModuleTimer::share(ProcessGroup& world, std::span<ModuleCost> leaves) const {
  std::vector<double> sums(3 * leaves.size());  // forward, backward, ranks
  for (size_t i = 0; i < leaves.size(); ++i) {
    const auto it = modules_.find(leaves[i].name);
    if (it == modules_.end()) continue;
    sums[3 * i] = it->second.forward;
    sums[3 * i + 1] = it->second.backward;
    sums[3 * i + 2] = 1;
  }
  sums = sum_over(world, std::move(sums));
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (sums[3 * i + 2] == 0) continue;
    leaves[i].forward = sums[3 * i] / sums[3 * i + 2];
    leaves[i].backward = sums[3 * i + 1] / sums[3 * i + 2];
  }
}

}  // namespace gt
