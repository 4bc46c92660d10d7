#include "launch/tools/plan/search.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "launch/config/config_optim.h"
#include "launch/tools/verify/layouts.h"
#include "model/module.h"
#include "optim/optimizer_rules.h"
#include "optim/param_group.h"

namespace gt {
namespace {

constexpr int kStepDigits = 4;  // of a step in the search's table

struct Ordered {
  Config config;  // not checked yet
  Workload work;
  StepTerms terms;
  double memory;
};

bool fixed(const SearchSpace& space, const std::string& key, const std::string& value) {
  return std::all_of(space.keep.begin(), space.keep.end(),
                     [&](const auto& k) { return k.first != key || k.second == value; });
}
bool fixed(const SearchSpace& space, const std::string& key, int64_t value) {
  return fixed(space, key, std::to_string(value));
}

// Divisors of n up to `most`, ascending.
std::vector<int64_t> divisors(int64_t n, int64_t most) {
  std::vector<int64_t> out;
  for (int64_t k = 1; k <= std::min(n, most); ++k)
    if (n % k == 0) out.push_back(k);
  return out;
}

// tp, pp, dp, ep and vpp on all devices.
std::vector<ParallelConfig> meshes(const Config& base, const SearchSpace& space) {
  std::vector<ParallelConfig> out;
  for (const int64_t tp : divisors(space.devices, base.model.heads)) {
    if (base.model.heads % tp != 0 || !base.model.widths_fit(tp) || !fixed(space, "parallel.tp", tp)) continue;
    for (const int64_t pp : divisors(space.devices / tp, base.model.layers)) {
      if (base.model.layers % pp != 0) continue;  // the closed form requires equal stages
      for (const int64_t vpp : divisors(pp > 1 ? base.model.layers / pp : 1, 8)) {
        ParallelConfig p = base.parallel;
        p.tp = tp, p.pp = pp, p.vpp = static_cast<int>(vpp), p.dp = space.devices / (tp * pp);
        p.schedule = vpp > 1                                   ? "interleaved"
                     : base.parallel.schedule == "interleaved" ? "1f1b"
                                                               : base.parallel.schedule;
        p.settle(pp);
        if (!fixed(space, "parallel.pp", pp) || !fixed(space, "parallel.dp", p.dp) ||
            !fixed(space, "parallel.vpp", vpp))
          continue;
        const int64_t experts = base.model.moe.experts;
        for (const int64_t ep : divisors(experts > 0 ? std::gcd(experts, p.dp) : 1, 64)) {
          p.ep = ep;
          if (fixed(space, "parallel.ep", ep)) out.push_back(p);
        }
      }
    }
  }
  return out;
}

std::vector<Ordered> candidates(const Config& base, const SearchSpace& space, const MachineModel& machine,
                                double capacity) {
  std::vector<Ordered> out;
  Config c = base;
  for (const ParallelConfig& mesh : meshes(base, space)) {
    if (base.train.global_batch % mesh.dp != 0) continue;
    for (const int64_t micro : divisors(base.train.global_batch / mesh.dp, 16)) {
      if (!fixed(space, "train.micro_batch", micro)) continue;
      for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        if (!fixed(space, "parallel.recompute", name_of(recompute))) continue;
        for (int64_t stage = 0; stage <= (mesh.dp > 1 ? 3 : 0); ++stage) {
          if (mesh.dp > 1 && !fixed(space, "zero.stage", stage)) continue;
          c.parallel = mesh, c.parallel.recompute = recompute, c.parallel.recompute_layers = 0;
          c.zero.stage = stage;
          c.train.micro_batch = micro, c.train.grad_accum = base.train.global_batch / mesh.dp / micro;
          const Workload w = workload_of(c);
          const double memory = largest_stage_memory(w).total();
          if (memory <= capacity) out.push_back({c, w, step_terms(w, machine), memory});
        }
      }
    }
  }
  return out;
}

}  // namespace

namespace {
double trained_share(const ModelSpec& spec) {
  return static_cast<double>(spec.trained_parameters()) / static_cast<double>(spec.parameters());
}

// Returns the rule of every parameter, as make_optimizer() chooses it; nullptr: frozen, or a tied copy.
std::vector<const OptimizerRule*> rules_of(const OptimizerOptions& o, const ModelSpec& spec) {
  std::vector<std::string> names;
  for (const ParamSpec& p : spec.params) names.push_back(p.name);
  const std::vector<int> groups = groups_of_names(o.groups, names);
  std::vector<const OptimizerRule*> out;
  for (size_t i = 0; i < spec.params.size(); ++i) {
    const ParamSpec& p = spec.params[i];
    out.push_back(p.frozen || !p.tied_to.empty() ? nullptr : &rule_of(o, groups[i], p.matrices_of_linear() > 0));
  }
  return out;
}

double moment_bytes(const OptimizerOptions& o, const ModelSpec& spec, const std::vector<const OptimizerRule*>& rules) {
  int64_t bytes = 0, elements = 0;
  for (size_t i = 0; i < rules.size(); ++i) {
    if (rules[i] == nullptr) continue;
    elements += spec.params[i].shape.numel();
    bytes += spec.params[i].shape.numel() * rules[i]->state_bytes(o);
  }
  return static_cast<double>(bytes) / static_cast<double>(elements);
}

// Matrices of the first block that Muon updates.
std::vector<Workload::Matrix> orthogonalized(const ModelSpec& spec, const std::vector<const OptimizerRule*>& rules) {
  std::vector<Workload::Matrix> out;
  for (size_t i = 0; i < rules.size(); ++i) {
    const ParamSpec& p = spec.params[i];
    if (p.layer != 1 || rules[i] == nullptr || rules[i]->name != "muon") continue;
    const BlockRange all{0, p.shape[-2]};
    for (int i = 0; i < p.shape.numel() / (p.shape[-2] * p.shape[-1]) * p.matrices; ++i) {
      const int b = i % p.matrices;
      const BlockRange rows = p.matrices == 1         ? all
                              : p.shard.tp().splits() ? local_block(p.shard.tp(), all.count, b, 1)
                                                      : BlockRange{0, all.count / p.matrices};
      out.push_back({static_cast<double>(rows.count), static_cast<double>(p.shape[-1])});
    }
  }
  return out;
}

// Share of the parameters that are held in int8.
double int8_share(const Config& c, const ModelSpec& spec) {
  if (c.precision.frozen_weights != FrozenWeights::kInt8) return 0;
  int64_t held = 0;
  for (const ParamSpec& p : spec.params) held += p.held_in_int8() ? p.shape.numel() : 0;
  return static_cast<double>(held) / static_cast<double>(spec.parameters());
}

// As the engine passes them to make_optimizer().
OptimizerOptions planned_optimizer(const Config& c) {
  OptimizerOptions o = optimizer_options(c);
  o.momentum_varies = make_lr_schedule(lr_options(c))->varies_momentum();
  return o;
}
}  // namespace

double moment_bytes(const Config& c) {
  const OptimizerOptions o = planned_optimizer(c);
  const ModelSpec spec = describe(c.model);
  return moment_bytes(o, spec, rules_of(o, spec));
}

Workload workload_of(const Config& c) {
  const ModelConfig& m = c.model;
  Workload w;
  w.layers = m.layers, w.hidden = m.hidden, w.heads = m.heads, w.kv_heads = m.groups(), w.head_dim = m.head_width();
  w.ffn = m.ffn, w.vocab = m.vocab, w.seq = m.seq, w.gated = m.gated, w.untied = !m.tied;
  w.bidirectional = m.mask == MaskKind::kFull;
  w.experts = m.moe.experts, w.ep = c.parallel.ep;
  if (w.experts > 0) w.top_k = m.moe.top_k, w.shared = m.moe.shared;
  static_cast<LayoutOptions&>(w) = c.parallel;
  w.tp = c.parallel.tp, w.pp = c.parallel.pp, w.dp = c.parallel.dp;
  w.zero = static_cast<int>(c.zero.stage);
  w.sequence_parallel = w.scatter_gather = c.sequence_parallel();
  w.overlap = c.zero.overlap;
  w.global_batch = c.train.global_batch, w.micro_batch = c.train.micro_batch;
  const ModelSpec spec = describe(m);
  const OptimizerOptions optimizer = planned_optimizer(c);
  const std::vector<const OptimizerRule*> rules = rules_of(optimizer, spec);
  const double trained = w.trained = trained_share(spec);  // frozen parameters have values only
  w.gradient_bytes = static_cast<double>(size_of(c.precision.reduce_dtype)) * trained;
  const bool is_16bit = c.precision.amp >= AmpLevel::kO2, masters = c.precision.amp == AmpLevel::kO2;
  const double int8 = int8_share(c, spec), weights = (is_16bit ? 2 : 4) * (1 - int8) + int8,
               gradients = static_cast<double>(size_of(c.precision.grad_dtype)) * trained;
  const double state = (moment_bytes(optimizer, spec, rules) + (masters ? 4 : 0)) * trained;
  w.sharded_bytes = (w.zero > 0 ? state : 0) + (w.zero > 1 ? gradients : 0) + (w.zero > 2 ? weights : 0);
  w.kept_bytes = weights + gradients + state - w.sharded_bytes;
  w.orthogonalized = orthogonalized(spec, rules);
  w.newton_schulz = optimizer.muon_iterations, w.newton_schulz_bytes = size_of(optimizer.muon_gemms);
  return w;
}

namespace {
double shown_step(double seconds) {
  const double unit = std::pow(10, std::floor(std::log10(seconds)) - (kStepDigits - 1));
  return std::round(seconds / unit) * unit;
}
}  // namespace

bool layout_before(double seconds_a, double memory_a, double seconds_b, double memory_b) {
  const double a = shown_step(seconds_a), b = shown_step(seconds_b);
  return a != b ? a < b : memory_a < memory_b;
}

std::vector<Candidate> search_layouts(const Config& base, const SearchSpace& space, const MachineModel& machine,
                                      double capacity, size_t most) {
  std::vector<Ordered> all = candidates(base, space, machine, capacity);
  std::sort(all.begin(), all.end(), [](const Ordered& a, const Ordered& b) {
    return layout_before(a.terms.total(), a.memory, b.terms.total(), b.memory);
  });
  std::vector<Candidate> out;
  for (const Ordered& o : all) {
    if (out.size() == most) break;
    CheckedLayout checked = check_layout(o.config, {});
    if (checked.problems.empty()) out.push_back({std::move(checked.config), o.terms, o.memory});
  }
  return out;
}

}  // namespace gt
