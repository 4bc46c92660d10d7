#include "launch/engine/measure/module_flops.h"

#include <fmt/format.h>

#include <algorithm>

#include "launch/options/console_text.h"

namespace gt {
namespace {

int level_of(const std::string& name) {
  if (name.empty()) return 0;
  const auto dots = static_cast<int>(std::count(name.begin(), name.end(), '.'));
  return name.rfind("layers.", 0) == 0 ? dots : dots + 1;  // "layers.0" is one level below the model
}

// Returns the enclosing module; "" is the whole model.
std::string parent(const std::string& name) {
  if (level_of(name) <= 1) return "";
  return name.substr(0, name.rfind('.'));
}

bool within(const std::string& leaf, const std::string& module) {
  return module.empty() || leaf == module || leaf.rfind(module + ".", 0) == 0;
}

// Returns every module of the tree with the sums of its leaves, parents before children.
std::vector<ModuleCost> tree(std::span<const ModuleCost> leaves) {
  std::vector<ModuleCost> out{{}};
  for (const ModuleCost& leaf : leaves) {
    std::vector<std::string> path;
    for (std::string n = leaf.name; !n.empty(); n = parent(n)) path.push_back(n);
    for (auto it = path.rbegin(); it != path.rend(); ++it)
      if (std::none_of(out.begin(), out.end(), [&](const ModuleCost& m) { return m.name == *it; }))
        out.push_back({.name = *it});
  }
  for (ModuleCost& m : out)
    for (const ModuleCost& leaf : leaves)
      if (within(leaf.name, m.name)) {
        m.parameters += leaf.parameters;
        m.flops += leaf.flops;
        m.forward += leaf.forward;
        m.backward += leaf.backward;
      }
  return out;
}

std::string rate(double flops, double seconds) {
  return seconds > 0 ? fmt::format("{:.2f}", flops / seconds * 1e-9) : "-";
}

template <class Value>
std::string best(const std::vector<const ModuleCost*>& level, int top, Value value, const char* format, double unit) {
  std::vector<const ModuleCost*> order = level;
  std::stable_sort(order.begin(), order.end(), [&](auto* a, auto* b) { return value(*a) > value(*b); });
  order.resize(std::min(order.size(), static_cast<size_t>(top)));
  std::vector<std::string> words;
  for (const ModuleCost* m : order)
    words.push_back(fmt::format("{} {}", m->name, fmt::format(fmt::runtime(format), value(*m) * unit)));
  return fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace

std::vector<ModuleCost> module_costs(const ModelSpec& spec, int64_t tokens, int64_t length,
                                     std::span<const double> keep) {
  std::vector<ModuleCost> out;
  for (const ModuleSpec& m : spec.modules) {
    const auto block = static_cast<size_t>(m.layer) - 1;
    const bool runs = m.layer < 1 || block >= keep.size() || keep[block] != 0;
    const double each =
        static_cast<double>(m.weights) + static_cast<double>(m.attention) * attended_keys(length, m.window);
    out.push_back({m.name, m.parameters, runs ? 2 * static_cast<double>(tokens) * each : 0});
  }
  return out;
}

std::string flops_table(std::span<const ModuleCost> leaves, const FlopsTable& t) {
  const std::vector<ModuleCost> modules = tree(leaves);
  const ModuleCost& model = modules.front();
  const auto ranks = static_cast<double>(t.replicas);
  const double backward = 2 + t.recompute_factor;
  std::string out = fmt::format(
      "FLOPs of step {}: {}; a rank is one of {} that share each module's work\n"
      "  parameters {}, forward {:.3e} FLOPs, forward and backward {:.3e}, a rank's share {:.3e}\n"
      "  the step {:.1f} ms: its modules forward {:.1f} ms and backward {:.1f} ms on a rank, {} GFLOP/s a rank over "
      "it\n",
      t.step, t.batch, t.replicas, format_thousands(model.parameters), model.flops, model.flops * (1 + backward),
      model.flops * (1 + backward) / ranks, 1e3 * t.step_seconds, 1e3 * model.forward, 1e3 * model.backward,
      rate(model.flops * (1 + backward) / ranks, t.step_seconds));
  int deepest = 0;
  for (const ModuleCost& m : modules) deepest = std::max(deepest, level_of(m.name));
  const int levels = t.depth < 0 ? deepest : std::min(t.depth, deepest);
  for (int level = 1; level <= levels; ++level) {
    std::vector<const ModuleCost*> here;
    for (const ModuleCost& m : modules)
      if (level_of(m.name) == level) here.push_back(&m);
    out += fmt::format(
        "  level {}: most parameters {}; most forward GFLOPs {}; longest forward ms {}\n", level,
        best(
            here, t.top, [](const ModuleCost& m) { return static_cast<double>(m.parameters); }, "{:.0f}", 1),
        best(
            here, t.top, [](const ModuleCost& m) { return m.flops; }, "{:.3f}", 1e-9),
        best(
            here, t.top, [](const ModuleCost& m) { return m.forward; }, "{:.2f}", 1e3));
  }
  if (!t.detailed) return out;
  out += fmt::format("{:<24}{:>14}{:>8}{:>16}{:>8}{:>12}{:>12}{:>12}\n", "  module", "parameters", "share",
                     "forward GFLOPs", "share", "forward ms", "backward ms", "GFLOP/s");
  for (const ModuleCost& m : modules) {
    const int level = level_of(m.name);
    if (level > levels) continue;
    const auto share = [](double part, double whole) { return whole > 0 ? 100 * part / whole : 0.; };
    const std::string name =
        std::string(static_cast<size_t>(2 + 2 * level), ' ') + (level == 0   ? "model"
                                                                : level == 1 ? m.name
                                                                             : m.name.substr(m.name.rfind('.') + 1));
    out += fmt::format("{:<24}{:>14}{:>7.1f}%{:>16.3f}{:>7.1f}%{:>12.3f}{:>12.3f}{:>12}\n", name,
                       format_thousands(m.parameters),
                       share(static_cast<double>(m.parameters), static_cast<double>(model.parameters)), m.flops * 1e-9,
                       share(m.flops, model.flops), 1e3 * m.forward, 1e3 * m.backward,
                       rate(m.flops * (1 + backward) / ranks, m.forward + m.backward));
  }
  return out;
}

}  // namespace gt
