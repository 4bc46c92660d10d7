#include "optim/optimizer.h"

#include <algorithm>

#include "optim/families.h"
#include "optim/optimizer_rules.h"
#include "optim/param_group.h"

namespace gt {

bool OptimizerOptions::uses(std::string_view rule) const {
  const auto chosen = [&](std::string_view name) {
    return type == name || std::any_of(groups.begin(), groups.end(), [&](const auto& g) { return g.rule == name; });
  };
  return chosen(rule) || std::any_of(optimizer_rules().begin(), optimizer_rules().end(),
                                     [&](const OptimizerRule& r) { return r.others == rule && chosen(r.name); });
}

int64_t OptimizerOptions::scalar_rows() const {
  int64_t rows = 0;
  for (const OptimizerRule& r : optimizer_rules()) rows += uses(r.name) ? r.scalar_rows * group_rows() : 0;
  return rows;
}

namespace {

// Returns, by store.tensors(), which parameters have this rule.
std::vector<bool> tensors_of(std::string_view rule, const OptimizerOptions& o, const ParamStore& store) {
  const std::vector<int> groups = groups_of_tensors(o.groups, store);
  std::vector<bool> out;
  for (size_t i = 0; i < groups.size(); ++i)
    out.push_back(rule_of(o, groups[i], store.tensors()[i]->matrices > 0).name == rule);
  return out;
}

// One optimizer per rule, each over the parameters that have it, with its own rows of scalars.
class GroupedOptimizer : public Optimizer {
 public:
  GroupedOptimizer(const OptimizerOptions& o, const ParamStore& store, const Mesh& mesh, const Backend& backend,
                   Stream stream)
      : ops_(*backend.ops) {
    int64_t row = 0;
    for (const OptimizerRule& rule : optimizer_rules()) {
      if (!o.uses(rule.name)) continue;
      OptimizerOptions own = o;
      own.type = rule.name;
      own.tensors = tensors_of(rule.name, o, store);
      const int64_t rows = rule.scalar_rows * o.group_rows();
      rules_.push_back({rule.make(own, store, mesh, backend, stream), row * kNumScalars, rows * kNumScalars});
      row += rows;
    }
  }

  void step(Tensor scalars, Stream stream) override {
    for (const Rule& r : rules_) {
      const Tensor own = scalars.slice(r.first, r.count);
      if (r.first > 0) share_verdict(scalars, own, ops_, stream);
      r.optimizer->step(own, stream);
    }
  }
  std::vector<ShardView> state_views(const ParamStore& store) const override {
    std::vector<ShardView> out;
    for (const Rule& r : rules_) {
      std::vector<ShardView> own = r.optimizer->state_views(store);
      out.insert(out.end(), own.begin(), own.end());
    }
    assign_over_tp(out);
    return out;
  }
  int64_t state_bytes() const override { return sum(&Optimizer::state_bytes); }
  int64_t work_bytes() const override { return sum(&Optimizer::work_bytes); }
  void fill_scalars(int64_t t, const LrPoint& p, float* scalars) const override {
    for (const Rule& r : rules_) r.optimizer->fill_scalars(t, p, scalars + r.first);
  }
  std::vector<TrustRatio> trust_ratios(Stream stream) const override {
    std::vector<TrustRatio> out;
    for (const Rule& r : rules_) {
      std::vector<TrustRatio> own = r.optimizer->trust_ratios(stream);
      out.insert(out.end(), own.begin(), own.end());
    }
    return out;
  }

 private:
  struct Rule {
    std::unique_ptr<Optimizer> optimizer;
    int64_t first, count;  // its scalars
  };
  int64_t sum(int64_t (Optimizer::*bytes)() const) const {
    int64_t n = 0;
    for (const Rule& r : rules_) n += (*r.optimizer.*bytes)();
    return n;
  }
  const OpTable& ops_;
  std::vector<Rule> rules_;
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& o, const ParamStore& store, const Mesh& mesh,
                                          const Backend& backend, Stream stream) {
  const OptimizerRule& rule = optimizer_rule(o.type);
  if (o.scalar_rows() != o.group_rows()) return std::make_unique<GroupedOptimizer>(o, store, mesh, backend, stream);
  return rule.make(o, store, mesh, backend, stream);
}

}  // namespace gt
