#include "launch/config/config_optim.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/core/check.h"
#include "launch/config/values/param_groups.h"
#include "optim/optimizer_rules.h"

namespace gt {
namespace {

constexpr const char* kSchedule = "schedule.type";
constexpr const char* kOptimizer = "optim.type";
constexpr const char* kVariant = "optim.lamb_variant";

// Values of `of` with which `key` has an effect. It is rejected with all others. Keys of optimizers: applicability().
struct KeyApplicability {
  std::string key, of, values;
};
const KeyApplicability kApplicability[] = {
    {"optim.lamb_min_norm", kVariant, "paper"},
    {"optim.lamb_max_norm", kVariant, "paper"},
    {"optim.lamb_min_coeff", kVariant, "deepspeed"},
    {"optim.lamb_max_coeff", kVariant, "deepspeed"},
    {"optim.lamb_eps_inside_sqrt", kVariant, "deepspeed"},
    {"optim.lamb_grad_averaging", kVariant, "apex"},
    {"optim.lamb_adam_w_mode", kVariant, "apex"},
    {"optim.lamb_nvlamb", kVariant, "apex"},
    {"log.lamb_every", kOptimizer, "lamb"},
    {"schedule.warmup_steps", kSchedule, "cosine|linear|constant|inverse_sqrt|wsd|warmup|warmup_decay|warmup_cosine"},
    {"schedule.unit", kSchedule, "cosine|linear|constant|inverse_sqrt|wsd"},
    {"schedule.start_lr", kSchedule, "cosine|linear|constant|inverse_sqrt|wsd|warmup|warmup_decay|lr_range_test"},
    {"schedule.min_lr", kSchedule, "cosine|linear|constant|inverse_sqrt|wsd|one_cycle"},
    {"schedule.total_steps", kSchedule, "cosine|linear|wsd|one_cycle_torch|warmup_decay|warmup_cosine"},
    {"schedule.decay_steps", kSchedule, "wsd"},
    {"schedule.decay_shape", kSchedule, "wsd"},
    {"schedule.pct_start", kSchedule, "one_cycle_torch"},
    {"schedule.anneal", kSchedule, "one_cycle_torch"},
    {"schedule.div_factor", kSchedule, "one_cycle_torch"},
    {"schedule.final_div_factor", kSchedule, "one_cycle_torch"},
    {"schedule.three_phase", kSchedule, "one_cycle_torch"},
    {"schedule.cycle_momentum", kSchedule, "one_cycle_torch|one_cycle"},
    {"schedule.min_momentum", kSchedule, "one_cycle_torch|one_cycle"},
    {"schedule.max_momentum", kSchedule, "one_cycle_torch|one_cycle"},
    {"schedule.ds_exact", kSchedule, "one_cycle|warmup|warmup_decay|warmup_cosine|lr_range_test"},
    {"schedule.warmup_type", kSchedule, "warmup|warmup_decay|warmup_cosine"},
    {"schedule.warmup_min_ratio", kSchedule, "warmup_cosine"},
    {"schedule.cos_min_ratio", kSchedule, "warmup_cosine"},
    {"schedule.first_steps", kSchedule, "one_cycle"},
    {"schedule.second_steps", kSchedule, "one_cycle"},
    {"schedule.first_stairs", kSchedule, "one_cycle"},
    {"schedule.second_stairs", kSchedule, "one_cycle"},
    {"schedule.decay_step_size", kSchedule, "one_cycle"},
    {"schedule.decay_lr_rate", kSchedule, "one_cycle"},
    {"schedule.decay_mom_rate", kSchedule, "one_cycle"},
    {"schedule.range_steps", kSchedule, "lr_range_test"},
    {"schedule.range_rate", kSchedule, "lr_range_test"},
    {"schedule.range_staircase", kSchedule, "lr_range_test"},
};

// Rows of the optimizers' own keys, then kApplicability. A schedule varies betas or momentum.
std::vector<KeyApplicability> applicability() {
  std::vector<KeyApplicability> out;
  for (const std::string_view key : optimizer_keys())
    out.push_back({cat("optim.", key), kOptimizer, rule_names([&](const auto& r) { return r.reads(key); }, "|")});
  for (const char* key : {"schedule.min_momentum", "schedule.max_momentum"})
    out.push_back(
        {key, kOptimizer, rule_names([](const auto& r) { return r.reads("betas") || r.reads("momentum"); }, "|")});
  out.insert(out.end(), std::begin(kApplicability), std::end(kApplicability));
  return out;
}

bool among(const std::string& value, const std::string& list) {
  return ("|" + list + "|").find("|" + value + "|") != std::string::npos;
}

// Per-type defaults in user syntax.
struct TypeDefault {
  std::string of, value, key, text;
};
std::vector<TypeDefault> type_defaults() {
  std::vector<TypeDefault> out{{kSchedule, "one_cycle", "schedule.min_momentum", "0.8"},
                               {kSchedule, "one_cycle", "schedule.max_momentum", "0.9"},
                               {kSchedule, "lr_range_test", "schedule.start_lr", "0.001"}};
  for (const OptimizerRule& r : optimizer_rules())
    for (const OptionText& d : r.defaults)
      out.push_back({kOptimizer, std::string(r.name), cat("optim.", d.key), std::string(d.text)});
  return out;
}

using Bad = std::function<void(const std::string&, std::string, std::string)>;

const Option* find(const std::vector<Option>& options, const std::string& key) {
  for (const Option& o : options)
    if (o.key() == key) return &o;
  return nullptr;
}

bool is_flag_name(const std::string& where) { return where.rfind("--", 0) == 0; }

void refuse(const KeyApplicability& b, const std::string& value, const std::string& of, const Bad& bad) {
  std::string users = b.values;
  for (size_t i; (i = users.find('|')) != std::string::npos;) users.replace(i, 1, ", ");
  bad(b.key, fmt::format("{} has no effect with {} {}", value, b.of, of),
      fmt::format("leave it out; it belongs to {}", users));
}

void reject_inapplicable_keys(Config& c, const RuleContext& x) {
  Config fresh;
  const std::vector<Option> options = list_options(c), defaults = list_options(fresh);
  const std::vector<TypeDefault> of_types = type_defaults();
  for (const KeyApplicability& b : applicability()) {
    const std::string of = value_text(*find(options, b.of));
    if (b.of == kVariant && c.optim.type != "lamb") continue;  // refused with the optimizer's type
    if (!x.known(b.key.c_str()) || !x.known(b.of.c_str()) || among(of, b.values)) continue;
    const std::string value = value_text(*find(options, b.key)), standard = value_text(*find(defaults, b.key));
    bool is_default = value == standard;
    for (const TypeDefault& d : of_types)  // default of another type, as in a config.json written for it
      is_default = is_default || (d.key == b.key && value == d.text);
    if (is_default) continue;
    const std::string where = x.where(b.key);
    if (!is_flag_name(x.where(b.of)) || where.empty() || is_flag_name(where)) {
      refuse(b, value, of, x.bad);
      continue;
    }
    set_from_words(*find(options, b.key), {standard});
    x.notes.push_back(fmt::format("{} {} has no effect with {} {}", where, b.key, b.of, of));
  }
}

void check_sgd(const OptimConfig& o, const Bad& bad) {
  if (o.type == "sgd" && o.nesterov && (o.momentum == 0 || o.dampening != 0))
    bad("optim.nesterov", "Nesterov momentum needs optim.momentum above 0 and no optim.dampening",
        "for example --optim.momentum 0.9");
}

void check_lamb(const OptimConfig& o, const Bad& bad) {
  if (o.lamb_max_norm != 0 && o.lamb_max_norm < o.lamb_min_norm)
    bad("optim.lamb_max_norm", fmt::format("{:g} is below optim.lamb_min_norm {:g}", o.lamb_max_norm, o.lamb_min_norm),
        "");
  if (o.lamb_max_coeff < o.lamb_min_coeff)
    bad("optim.lamb_max_coeff",
        fmt::format("{:g} is below optim.lamb_min_coeff {:g}", o.lamb_max_coeff, o.lamb_min_coeff), "");
}

void check_groups(const OptimConfig& o, const Bad& bad) {
  const OptimizerRule& rule = optimizer_rule(o.type);
  for (const std::string& text : o.group_texts) try {
      const ParamGroup group = parse_param_group(text);
      if (group.betas && !rule.reads("betas"))
        bad("optim.groups", fmt::format("{}: betas have no effect with optim.type {}", group.match, o.type),
            "leave them out");
      if (!group.rule.empty() && group.rule != rule.others)
        bad("optim.groups", fmt::format("{}: rule has no effect with optim.type {}", group.match, o.type),
            fmt::format("leave it out; it belongs to {}",
                        rule_names([](const auto& r) { return !r.others.empty(); }, ", ")));
    } catch (const Error& e) { bad("optim.groups", e.what(), "for example \"embed lr_scale=0.1 weight_decay=0\""); }
  for (const std::string& pattern : o.no_decay) try {
      require_regex(pattern);
    } catch (const Error& e) { bad("optim.no_decay", e.what(), "for example embed, ^layers\\.0\\."); }
}

void check_schedule(const Config& c, const RuleContext& x) {
  const auto& [where, known, bad, notes] = x;
  const ScheduleConfig& s = c.schedule;
  if (known("schedule.min_lr") && known("optim.lr") && s.min_lr > c.optim.lr)
    bad("schedule.min_lr", fmt::format("{:g} is above optim.lr {:g}", s.min_lr, c.optim.lr),
        fmt::format("at most {:g}", c.optim.lr));
  if (s.min_momentum > s.max_momentum)
    bad("schedule.max_momentum",
        fmt::format("{:g} is below schedule.min_momentum {:g}", s.max_momentum, s.min_momentum), "");
  if (s.type == "lr_range_test" && s.start_lr == 0)
    bad("schedule.start_lr", "a range test that starts at 0 stays at 0", "for example 1e-5");
  try {
    make_lr_schedule(lr_options(c));
  } catch (const Error& e) {  // "schedule.decay_steps: …"
    const std::string what = e.what();
    const size_t colon = what.find(": ");
    bad(what.substr(0, colon), what.substr(colon + 2), "");
  }
}

}  // namespace

OptimizerOptions optimizer_options(const Config& c) {
  OptimizerOptions o = c.optim;
  o.beta1 = static_cast<float>(c.optim.betas[0]);
  o.beta2 = static_cast<float>(c.optim.betas[1]);
  for (const std::string& text : c.optim.group_texts) o.groups.push_back(parse_param_group(text));
  const MuonDType muon = c.optim.muon_dtype;
  const bool wide = muon == MuonDType::kAuto ? c.precision.amp == AmpLevel::kO0 : muon == MuonDType::kFp32;
  o.muon_gemms = wide ? DType::kF32 : DType::kBF16;
  return o;
}

namespace {

// 0: the schedule counts steps. An unresolved batch counts as one sample.
int64_t samples_per_step(const Config& c) {
  return c.schedule.unit == LengthUnit::kSamples ? std::max<int64_t>(1, c.train.global_batch) : 0;
}

// The curve's length where schedule.total_steps is 0. A curve that falls to 0 arrives one step after the last: a step
// at rate 0 changes no weight.
int64_t default_total_steps(const Config& c) {
  const std::string& type = c.schedule.type;
  const bool falls_to_zero = c.schedule.min_lr == 0 && (type == "cosine" || type == "linear" || type == "wsd");
  return (c.train.steps + (falls_to_zero ? 1 : 0)) * std::max<int64_t>(1, samples_per_step(c));
}

}  // namespace

LrOptions lr_options(const Config& c) {
  LrOptions o = c.schedule;
  o.peak = c.optim.lr;
  if (o.total_steps == 0) o.total_steps = default_total_steps(c);
  o.samples_per_step = samples_per_step(c);
  return o;
}

namespace {

void set_type_defaults(Config& c, const RuleContext& x) {
  const std::vector<Option> options = list_options(c);
  for (const TypeDefault& d : type_defaults())
    if (value_text(*find(options, d.of)) == d.value && x.where(d.key).empty())
      GT_CHECK(set_from_words(*find(options, d.key), {d.text}).empty(), "default of ", d.key);
  // DeepSpeed's LAMB has different defaults.
  if (c.optim.type != "lamb" || c.optim.lamb_variant != LambVariant::kDeepSpeed) return;
  if (x.where("optim.eps").empty()) c.optim.eps = 1e-8f;
  if (x.where("optim.weight_decay").empty()) c.optim.weight_decay = 0;
}

}  // namespace

void check_optimizer(Config& c, const RuleContext& x) {
  const auto& [where, known, bad, notes] = x;
  set_type_defaults(c, x);
  reject_inapplicable_keys(c, x);
  check_sgd(c.optim, bad);
  check_lamb(c.optim, bad);
  if (c.optim.type == "lamb" && c.optim.lamb_variant != LambVariant::kDeepSpeed && !c.optim.bias_correction)
    bad("optim.bias_correction", fmt::format("false has no effect with lamb_variant {}", name_of(c.optim.lamb_variant)),
        "it belongs to adamw, adam and lamb_variant deepspeed");
  check_groups(c.optim, bad);
  // Legal: a short trial of a long recipe. The curve is that of the recipe's beginning.
  if (known("schedule.warmup_steps") && known("train.steps") && c.schedule.warmup_steps > 0 &&
      c.schedule.warmup_steps / std::max<int64_t>(1, samples_per_step(c)) >= c.train.steps)
    notes.push_back(fmt::format("the run ends inside the warm-up: train.steps {}, schedule.warmup_steps {}{}",
                                c.train.steps, c.schedule.warmup_steps,
                                c.schedule.unit == LengthUnit::kSamples ? " (samples)" : ""));
  if (!known(kSchedule) || !known("train.steps") || !known("schedule.total_steps")) return;
  check_schedule(c, x);
  for (const std::string& defect : lr_deviations(lr_options(c)))
    notes.push_back(
        fmt::format("schedule {} as in DeepSpeed: {}; schedule.ds_exact false removes this", c.schedule.type, defect));
}

}  // namespace gt
