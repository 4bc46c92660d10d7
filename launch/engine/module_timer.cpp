#include "launch/engine/module_timer.h"

#include <vector>

namespace gt {
namespace {

bool ends_with(std::string_view s, std::string_view end) {
  return s.size() >= end.size() && s.substr(s.size() - end.size()) == end;
}

// "layers.3.mlp.up" -> "layers.3"; other modules are their own.
std::string block_of(const std::string& module) {
  if (module.rfind("layers.", 0) != 0) return module;
  return module.substr(0, module.find('.', 7));
}

}  // namespace

void ModuleTimer::add(std::string_view op, const std::string* parameter, bool transposed_b, double seconds) {
  if (ends_with(op, "_grad") || op == "sum_rows")
    backward_ = true;
  else if (op == "gemm" || op == "gemm_fp8")
    backward_ = !transposed_b;
  else if (op == "layer_norm" || op == "embedding" || op == "add_position" || op == "gelu" || op == "activate" ||
           op == "attention")
    backward_ = false;
  if (parameter != nullptr) last_ = parameter->substr(0, parameter->rfind('.'));
  std::string module = last_;
  if (op.rfind("attention", 0) == 0) module = block_of(last_) + ".attn.core";
  if (op.rfind("gelu", 0) == 0) module = block_of(last_) + ".mlp.gelu";
  if (op.rfind("activate", 0) == 0) module = block_of(last_) + ".mlp.act";
  if (op.rfind("cross_entropy", 0) == 0) module = "head";
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
  const Tensor all{reinterpret_cast<std::byte*>(sums.data()), {static_cast<int64_t>(sums.size())}, DType::kF64, {}};
  world.all_reduce(all, ReduceOp::kSum, {}).wait({});
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (sums[3 * i + 2] == 0) continue;
    leaves[i].forward = sums[3 * i] / sums[3 * i + 2];
    leaves[i].backward = sums[3 * i + 1] / sums[3 * i + 2];
  }
}

}  // namespace gt
