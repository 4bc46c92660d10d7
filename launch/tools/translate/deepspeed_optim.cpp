// Optimizer and learning-rate schedule of a DeepSpeed file. Formulas: optim/README.md (lamb_variant deepspeed,
// schedule.ds_exact).
#include <fmt/format.h>

#include <algorithm>

#include "launch/options/near_word.h"
#include "launch/tools/translate/deepspeed_translation.h"
#include "optim/optimizer_rules.h"

namespace gt {
namespace {

constexpr const char* kOptimizer = "optimizer.type";
constexpr const char* kScheduler = "scheduler.type";

std::string lower(std::string s) {
  std::transform(s.begin(), s.end(), s.begin(), [](unsigned char c) { return std::tolower(c); });
  return s;
}

std::string param(const std::string& block, const char* name) { return block + ".params." + name; }

// Sets one of our keys from a parameter of a block, or from DeepSpeed's default; standard "": left unset.
void set_param(DsTranslation& t, const std::string& path, const std::string& native, const std::string& standard) {
  if (const DsValue* v = t.given(path)) {
    std::vector<std::string> words;
    for (const JsonValue& x : v->value.items) words.push_back(x.text);
    if (words.empty()) words = {shown(v->value)};
    t.set(path, native, words);
  } else if (t.is_auto(path)) {
    t.report(path, "the native value of " + native);
  } else if (const size_t comma = standard.find(','); comma != std::string::npos) {
    t.quietly(path, native, {standard.substr(0, comma), standard.substr(comma + 1)});
  } else if (!standard.empty()) {
    t.quietly(path, native, {standard});
  }
}

struct Param {
  const char *name, *native, *standard;
};
void set_params(DsTranslation& t, const std::string& block, std::initializer_list<Param> params) {
  for (const Param& p : params) set_param(t, param(block, p.name), p.native, p.standard);
}

// The rule of an optimizer by DeepSpeed's name in lower case; nullptr: none.
const OptimizerRule* rule_named(const std::string& name) {
  for (const OptimizerRule& r : optimizer_rules())
    if (!name.empty() && lower(std::string(r.deepspeed.name)) == name) return &r;
  return nullptr;
}

void set_rule(DsTranslation& t, const OptimizerRule& r, const std::string& comment) {
  t.set(kOptimizer, "optim.type", std::string(r.name), comment);
  for (const OptionText& o : r.deepspeed.implied) t.quietly(kOptimizer, cat("optim.", o.key), {std::string(o.text)});
  for (const DeepSpeedOptimizer::Param& p : r.deepspeed.params)
    if (!p.standard.empty())
      set_param(t, cat("optimizer.params.", p.name), cat("optim.", p.key), std::string(p.standard));
}

// DeepSpeed's Adam is AdamW unless adam_w_mode is false, which its AdamW ignores.
void adam(DsTranslation& t, const OptimizerRule& r) {
  const std::string mode = "optimizer.params.adam_w_mode";
  const bool decoupled = t.flag(mode, true);
  if (r.name == "adam")
    return set_rule(t, decoupled ? optimizer_rule("adamw") : r,
                    decoupled ? "adam_w_mode defaults to true" : "adam_w_mode false");
  set_rule(t, r, "");
  if (!decoupled) t.report(mode, "no effect on AdamW, as in DeepSpeed");
}

// Learning rates of Muon's matrices and of AdamW's parameters. Schedulers other than WarmupCosineLR give both the same.
void muon_rates(DsTranslation& t) {
  constexpr const char *kBoth = "optimizer.params.lr", *kMuon = "optimizer.params.muon_lr",
                       *kAdam = "optimizer.params.adam_lr";
  const std::string schedule = lower(t.text(kScheduler, ""));
  if (!schedule.empty() && schedule != "warmupcosinelr") {
    for (const char* key : {kMuon, kAdam})
      if (t.has(key)) t.report(key, "no effect: the schedule sets the learning rate, as in DeepSpeed");
    return set_param(t, kBoth, "optim.lr", "0.001");
  }
  const bool differ = t.has(kMuon) || t.has(kAdam);
  if (t.is_auto(kBoth) && differ)
    return t.refuse(kBoth, "auto is a native value, of which muon_lr and adam_lr cannot be multiples",
                    "give lr a number");
  if (t.is_auto(kBoth) || (t.has(kBoth) && !differ)) return set_param(t, kBoth, "optim.lr", "");
  const double adam = t.number(kAdam, t.number(kBoth, 3e-4)), muon = t.number(kMuon, t.number(kBoth, 0.02));
  t.set(t.has(kAdam) ? kAdam : kBoth, "optim.lr", fmt::format("{}", adam), t.has(kAdam) ? "" : "of AdamW");
  if (t.has(kBoth) && t.has(kAdam))
    t.report(kBoth, t.has(kMuon) ? "no effect: muon_lr and adam_lr replace it" : "of Muon's matrices");
  t.set(t.has(kMuon) ? kMuon : kBoth, "optim.muon_lr_scale", fmt::format("{}", muon / adam),
        fmt::format("times optim.lr: {} for Muon's matrices", muon));
}

void muon(DsTranslation& t, const OptimizerRule& r) {
  set_rule(t, r, std::string(r.deepspeed.comment));
  muon_rates(t);
  if (t.has("optimizer.params.ns_method"))
    t.report("optimizer.params.ns_method", "no effect: both methods are the same polynomial; optim.muon_dtype rounds");
  const char* clipping = "gradient_clipping";
  if (t.is_auto(clipping) || t.number(clipping, 1) != 0)
    t.refuse(t.has(clipping) ? clipping : kOptimizer,
             fmt::format("{}DeepSpeed clips Muon's orthogonalized updates, which shrinks its steps; here gradients are "
                         "clipped, before",
                         t.has(clipping) ? "" : "gradient_clipping is absent, which is 1: "),
             "set gradient_clipping 0, with a learning rate for whole steps");
}

// DeepSpeed optimizers that are not implemented, with the nearest alternative.
constexpr struct {
  const char *name, *nearest;
} kMissing[] = {{"onebitadam", "Adam"}, {"zerooneadam", "Adam"}, {"onebitlamb", "Lamb"},
                {"muadam", "Adam"},     {"muadamw", "AdamW"},    {"musgd", "SGD"}};

void refuse_optimizer(DsTranslation& t, const std::string& type) {
  for (const auto& m : kMissing)
    if (lower(type) == m.name)
      return t.refuse(kOptimizer, fmt::format("{} is not built yet in this version", type),
                      fmt::format("the nearest that is: {}", m.nearest));
  std::vector<std::string> known;
  for (const OptimizerRule& r : optimizer_rules())
    if (!r.deepspeed.name.empty()) known.emplace_back(r.deepspeed.name);
  const std::string guess = did_you_mean(type, known);
  t.refuse(kOptimizer, fmt::format("unknown optimizer \"{}\"", type.substr(0, 60)),
           guess.empty() ? fmt::format("there are {}", fmt::join(known, ", ")) : "did you mean " + guess + "?");
}

void scheduler_of(DsTranslation& t, const char* type) {
  t.set(kScheduler, "schedule.type", type, "exact form; schedule.ds_exact=false removes DeepSpeed's defects");
  t.quietly(kScheduler, "schedule.ds_exact", {"true"});
}

void require_param(DsTranslation& t, const char* name) {
  if (!t.has(param("scheduler", name)))
    t.refuse(param("scheduler", name), fmt::format("missing: {} requires it", t.text(kScheduler, "")), "add it");
}

// The schedule's peak learning rate overrides the optimizer's; both map to optim.lr.
void set_peak(DsTranslation& t, const char* name, const char* standard) {
  const std::string path = param("scheduler", name);
  if (t.is_auto(path)) return t.report(path, "the native value of optim.lr");
  if (!t.given(path) && !standard) return;
  const bool optimizers = t.given("optimizer.params.lr") != nullptr;
  const std::string comment = optimizers ? "optimizer.params.lr has no effect: the schedule sets it" : "";
  if (t.given(path))
    t.set(path, "optim.lr", t.text(path, ""), comment);
  else if (!t.is_auto("optimizer.params.lr"))
    t.set(path, "optim.lr", standard, comment.empty() ? "DeepSpeed's default" : comment);
}

void warmup(DsTranslation& t, const char* type, const char* peak) {
  scheduler_of(t, type);
  set_peak(t, "warmup_max_lr", peak);
  set_params(t, "scheduler",
             {{"warmup_min_lr", "schedule.start_lr", "0"},
              {"warmup_num_steps", "schedule.warmup_steps", "1000"},
              {"warmup_type", "schedule.warmup_type", "log"}});
}

void total_steps(DsTranslation& t) {
  require_param(t, "total_num_steps");
  set_params(t, "scheduler", {{"total_num_steps", "schedule.total_steps", ""}});
}

void one_cycle(DsTranslation& t) {
  scheduler_of(t, "one_cycle");
  require_param(t, "cycle_min_lr");
  require_param(t, "cycle_max_lr");
  set_peak(t, "cycle_max_lr", nullptr);
  set_params(t, "scheduler",
             {{"cycle_min_lr", "schedule.min_lr", ""},
              {"decay_lr_rate", "schedule.decay_lr_rate", "0"},
              {"cycle_first_step_size", "schedule.first_steps", "2000"},
              {"cycle_second_step_size", "schedule.second_steps", "-1"},
              {"cycle_first_stair_count", "schedule.first_stairs", "0"},
              {"cycle_second_stair_count", "schedule.second_stairs", "-1"},
              {"decay_step_size", "schedule.decay_step_size", "0"},
              {"cycle_min_mom", "schedule.min_momentum", "0.8"},
              {"cycle_max_mom", "schedule.max_momentum", "0.9"},
              {"decay_mom_rate", "schedule.decay_mom_rate", "0"}});
  const OptimizerRule* rule = rule_named(lower(t.text(kOptimizer, "")));
  const std::string cycle = param("scheduler", "cycle_momentum");
  if (rule != nullptr && !rule->reads("betas"))
    t.set(cycle, "schedule.cycle_momentum", "false",
          fmt::format("DeepSpeed changes only beta1, which {} lacks", rule->deepspeed.name));
  else
    set_params(t, "scheduler", {{"cycle_momentum", "schedule.cycle_momentum", "true"}});
}

void range_test(DsTranslation& t) {
  scheduler_of(t, "lr_range_test");
  set_params(t, "scheduler",
             {{"lr_range_test_min_lr", "schedule.start_lr", "0.001"},
              {"lr_range_test_step_size", "schedule.range_steps", "2000"},
              {"lr_range_test_step_rate", "schedule.range_rate", "1"},
              {"lr_range_test_staircase", "schedule.range_staircase", "false"}});
}

}  // namespace

void translate_optimizer(DsTranslation& t) {
  t.out.has_clipping = t.has("gradient_clipping");
  const std::string type = t.text(kOptimizer, ""), name = lower(type);
  if (name.empty()) return;
  t.out.has_optimizer = true;
  const OptimizerRule* rule = rule_named(name);
  if (rule == nullptr) return refuse_optimizer(t, type);
  if (rule->name == "adam" || rule->name == "adamw") return adam(t, *rule);
  if (rule->name == "muon") return muon(t, *rule);
  set_rule(t, *rule, std::string(rule->deepspeed.comment));
}

void translate_scheduler(DsTranslation& t) {
  const std::string type = t.text(kScheduler, ""), name = lower(type);
  if (name.empty()) return;
  t.out.has_scheduler = true;
  if (name == "warmuplr") {
    warmup(t, "warmup", nullptr);
  } else if (name == "warmupdecaylr") {
    warmup(t, "warmup_decay", "0.001");
    total_steps(t);
  } else if (name == "warmupcosinelr") {
    scheduler_of(t, "warmup_cosine");
    total_steps(t);
    set_params(t, "scheduler",
               {{"warmup_num_steps", "schedule.warmup_steps", "1000"},
                {"warmup_type", "schedule.warmup_type", "log"},
                {"warmup_min_ratio", "schedule.warmup_min_ratio", "0"},
                {"cos_min_ratio", "schedule.cos_min_ratio", "0.0001"}});
  } else if (name == "onecycle") {
    one_cycle(t);
  } else if (name == "lrrangetest") {
    range_test(t);
  } else {
    const std::vector<std::string> known{"LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"};
    const std::string guess = did_you_mean(type, known);
    t.refuse(kScheduler, fmt::format("unknown scheduler \"{}\"", type.substr(0, 60)),
             guess.empty() ? fmt::format("there are {}", fmt::join(known, ", ")) : "did you mean " + guess + "?");
  }
}

}  // namespace gt
