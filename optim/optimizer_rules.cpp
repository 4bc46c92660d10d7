#include "optim/optimizer_rules.h"

#include <algorithm>

#include "optim/families.h"

namespace gt {
namespace {

using Param = DeepSpeedOptimizer::Param;
constexpr Param kRate{"lr", "lr", "0.001"}, kDecay{"weight_decay", "weight_decay", "0"}, kEps{"eps", "eps", "1e-8"},
    kBetas{"betas", "betas", "0.9,0.999"}, kBiasCorrection{"bias_correction", "bias_correction", "true"};

const std::vector<Moment>& adam_moments() {
  static const std::vector<Moment> kMoments{{"exp_avg"}, {.name = "exp_avg_sq", .squares = true}};
  return kMoments;
}

template <bool kL2>
void adam_step(const FlatStep& s) {
  s.ops.adamw({.table = s.table, .scalars = s.scalars, .eps = s.options.eps, .adam_l2 = kL2}, s.stream);
}

// SGD's momentum is the first beta of the scalars.
void fill_sgd(const OptimizerOptions& o, int64_t t, const LrPoint& p, float* scalars) {
  fill_rows(o, scalars, [&](const ParamGroup& g, float* s) {
    s[kLr] = static_cast<float>(p.lr * g.lr_scale);
    s[kBeta1] = p.beta1 == kKeepBeta ? o.momentum : static_cast<float>(p.beta1);
    fill_step_number(t, s);
    s[kGradCoefficient] = t == 1 ? 1 : 1 - o.dampening;  // the first gradient initializes the buffer undamped
  });
}

OptimizerRule adamw() {
  return {.name = "adamw",
          .keys = "betas|eps|bias_correction",
          .moments = adam_moments(),
          .make = make_flat,
          .step = adam_step<false>,
          .fill = fill_adam_scalars,
          .megatron = {"adam", "adamw"},
          .deepspeed = {.name = "AdamW", .params = {kRate, kBetas, kEps, kDecay, kBiasCorrection}}};
}

OptimizerRule adam() {
  return {.name = "adam",
          .keys = "betas|eps|bias_correction",
          .decoupled = false,
          .moments = adam_moments(),
          .defaults = {{"weight_decay", "0"}},
          .make = make_flat,
          .step = adam_step<true>,
          .fill = fill_adam_scalars,
          .deepspeed = {.name = "Adam", .params = {kRate, kBetas, kEps, kDecay, kBiasCorrection}}};
}

OptimizerRule lamb() {
  return {.name = "lamb",
          .keys =
              "betas|eps|bias_correction|lamb_variant|lamb_min_norm|lamb_max_norm|lamb_min_coeff|lamb_max_coeff|"
              "lamb_eps_inside_sqrt|lamb_grad_averaging|lamb_adam_w_mode|lamb_nvlamb",
          .moments = adam_moments(),
          .defaults = {{"betas", "0.9,0.999"}, {"weight_decay", "0.01"}, {"eps", "1e-06"}},
          .make = make_lamb,
          .megatron = {"lamb"},
          .deepspeed = {.name = "Lamb",
                        .params = {kRate,
                                   kBetas,
                                   kEps,
                                   kDecay,
                                   kBiasCorrection,
                                   {"max_coeff", "lamb_max_coeff", "10"},
                                   {"min_coeff", "lamb_min_coeff", "0.01"},
                                   {"eps_inside_sqrt", "lamb_eps_inside_sqrt", "false"}},
                        .implied = {{"lamb_variant", "deepspeed"}},
                        .comment = "lamb_variant deepspeed"}};
}

OptimizerRule sgd() {
  return {.name = "sgd",
          .keys = "momentum|dampening|nesterov",
          .decoupled = false,
          .moments = {{"momentum_buffer"}},
          .keeps_moments = [](const OptimizerOptions& o) { return o.momentum != 0 || o.momentum_varies; },
          .defaults = {{"weight_decay", "0"}},
          .make = make_flat,
          .step =
              [](const FlatStep& s) {
                s.ops.sgd({.table = s.table, .scalars = s.scalars, .nesterov = s.options.nesterov}, s.stream);
              },
          .fill = fill_sgd,
          .megatron = {"sgd"},
          .deepspeed = {.name = "SGD",
                        .params = {kRate,
                                   kDecay,
                                   {"momentum", "momentum", "0"},
                                   {"dampening", "dampening", "0"},
                                   {"nesterov", "nesterov", "false"}}}};
}

OptimizerRule lion() {
  return {.name = "lion",
          .keys = "betas",
          .moments = {{"exp_avg"}},
          .defaults = {{"betas", "0.9,0.99"}},
          .make = make_flat,
          .step = [](const FlatStep& s) { s.ops.lion({.table = s.table, .scalars = s.scalars}, s.stream); },
          .fill = fill_adam_scalars,
          .megatron = {"lion"},
          .deepspeed = {.name = "Lion", .params = {kRate, {"betas", "betas", "0.9,0.99"}, kDecay}}};
}

OptimizerRule muon() {
  return {.name = "muon",
          .keys =
              "betas|eps|bias_correction|momentum|nesterov|muon_lr_scale|muon_scale|muon_iterations|"
              "muon_coefficients|muon_dtype",
          .moments = {{"momentum_buffer"}},
          .defaults = {{"momentum", "0.95"}, {"nesterov", "true"}},
          .make = make_muon,
          .others = "adamw",
          .scalar_rows = 2,  // of its momentum, then of its step
          .megatron = {"muon", "dist_muon"},
          .deepspeed = {.name = "Muon",
                        .params = {{"lr", "lr", ""},
                                   kDecay,
                                   {"betas", "betas", "0.9,0.95"},
                                   {"eps", "eps", "1e-10"},
                                   {"momentum", "momentum", "0.95"}},
                        .implied = {{"muon_scale", "original"}},
                        .comment = "weights of linear layers, Q, K, V, gate and up apart; AdamW the rest"}};
}

OptimizerRule adagrad() {
  return {.name = "adagrad",
          .keys = "eps",
          .decoupled = false,
          .moments = {{.name = "sum", .squares = true}},
          .defaults = {{"weight_decay", "0"}, {"eps", "1e-10"}},
          .make = make_flat,
          .step =
              [](const FlatStep& s) {
                s.ops.adagrad({.table = s.table, .scalars = s.scalars, .eps = s.options.eps}, s.stream);
              },
          .fill = fill_adam_scalars,
          .deepspeed = {.name = "Adagrad", .params = {{"lr", "lr", "0.01"}, {"eps", "eps", "1e-10"}, kDecay}}};
}

// Calls f(key) for every key of "a|b|c".
template <class F>
void each_key(std::string_view keys, F f) {
  for (size_t end; !keys.empty(); keys.remove_prefix(std::min(end + 1, keys.size()))) {
    end = std::min(keys.find('|'), keys.size());
    f(keys.substr(0, end));
  }
}

}  // namespace

const std::vector<OptimizerRule>& optimizer_rules() {
  static const std::vector<OptimizerRule> kRules{adamw(), adam(), lamb(), sgd(), lion(), muon(), adagrad()};
  return kRules;
}

const OptimizerRule& optimizer_rule(std::string_view name) {
  for (const OptimizerRule& r : optimizer_rules())
    if (r.name == name) return r;
  fail(Exit::kUsage, "optim.type: unknown optimizer \"", name, "\"; there are ",
       rule_names([](const OptimizerRule&) { return true; }, ", "));
}

bool OptimizerRule::reads(std::string_view key) const {
  bool found = false;
  each_key(keys, [&](std::string_view k) { found = found || k == key; });
  return found;
}

std::vector<Moment> OptimizerRule::kept(const OptimizerOptions& o) const {
  return keeps_moments == nullptr || keeps_moments(o) ? moments : std::vector<Moment>{};
}

int64_t OptimizerRule::state_bytes(const OptimizerOptions& o) const {
  int64_t n = 0;
  for (const Moment& m : kept(o)) n += size_of(m.dtype);
  return n;
}

const OptimizerRule& rule_of(const OptimizerOptions& o, int group, bool linear) {
  const std::string own = group > 0 ? o.groups[static_cast<size_t>(group) - 1].rule : "";
  const OptimizerRule& r = optimizer_rule(own.empty() ? o.type : own);
  return linear || r.others.empty() ? r : optimizer_rule(r.others);
}

std::vector<std::string_view> optimizer_keys() {
  std::vector<std::string_view> out;
  for (const OptimizerRule& r : optimizer_rules())
    each_key(r.keys, [&](std::string_view key) {
      if (std::find(out.begin(), out.end(), key) == out.end()) out.push_back(key);
    });
  return out;
}

bool holds_squares(std::string_view state) {
  for (const OptimizerRule& r : optimizer_rules())
    for (const Moment& m : r.moments)
      if (state.starts_with(cat(m.name, "/"))) return m.squares;
  return false;
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> out;
  for (const OptimizerRule& r : optimizer_rules()) out.emplace_back(r.name);
  return out;
}

std::string optimizer_domain() {
  return rule_names([](const OptimizerRule&) { return true; }, "|");
}

std::string help_with_readers(std::string_view key, std::string_view meaning) {
  return cat(rule_names([key](const OptimizerRule& r) { return r.reads(key); }, ", "), ": ", meaning);
}

std::string weight_decay_help() {
  return cat("decoupled (", rule_names([](const OptimizerRule& r) { return r.decoupled; }, ", "),
             ") or added to the gradient (", rule_names([](const OptimizerRule& r) { return !r.decoupled; }, ", "),
             "); not on biases and norms");
}

}  // namespace gt
