#include "launch/tools/verify/layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <tuple>

#include "kernels/core/check.h"
#include "launch/config/config_check.h"

namespace gt {
namespace {

// Ordered so that every prefix of a legal layout, with the rest at defaults, is legal too.
constexpr const char* kAxes[] = {"parallel.tp",
                                 "parallel.sequence_parallel",
                                 "parallel.pp",
                                 "parallel.schedule",
                                 "parallel.extra_in_flight",
                                 "parallel.vpp",
                                 "parallel.dp",
                                 "parallel.ep",
                                 "parallel.recompute",
                                 "zero.stage",
                                 "zero.grad_reduce",
                                 "precision.amp",
                                 "precision.dtype"};

bool is_precision(const std::string& key) { return key.rfind("precision.", 0) == 0; }

bool counts_ranks(const std::string& key) {
  return key == "parallel.tp" || key == "parallel.pp" || key == "parallel.dp";
}

// Parses "0..3 …"; returns false unless the domain is a closed range of integers.
bool range_of(const std::string& domain, int64_t& low, int64_t& high) {
  const size_t dots = domain.find("..");
  if (dots == std::string::npos) return false;
  const char* end = domain.data() + domain.size();
  return std::from_chars(domain.data(), domain.data() + dots, low).ec == std::errc() &&
         std::from_chars(domain.data() + dots + 2, end, high).ec == std::errc();
}

std::vector<std::string> values_of(const Option& o, int64_t most) {
  std::vector<std::string> out;
  if (o.key() == "parallel.extra_in_flight") return {"0", "2"};
  if (is_flag(o)) return {"false", "true"};
  const auto capital = [](char x) { return x >= 'A' && x <= 'Z'; };
  for (const std::string& c : choices(o))  // FILE is not a value (O2 is), auto equals another
    if (std::count_if(c.begin(), c.end(), capital) <= 1 && c != "auto") out.push_back(c);
  int64_t low = 0, high = 0;
  if (out.empty() && range_of(o.domain, low, high))
    for (int64_t v = counts_ranks(o.key()) ? std::max<int64_t>(low, 1) : low; v <= std::min(high, most); ++v)
      out.push_back(std::to_string(v));
  return out;
}

// Sets an option of the config that the options refer to.
void set(const std::vector<Option>& options, const std::string& key, const std::string& value) {
  for (const Option& o : options)
    if (o.key() == key) {
      const std::string bad = set_from_words(o, {value});
      GT_CHECK(bad.empty(), key, " ", value, ": ", bad);
      return;
    }
  GT_CHECK(false, "no option ", key);
}

constexpr const char* kGradReduce = "zero.grad_reduce";

std::string text_of(const std::vector<Option>& options, const std::string& key) {
  for (const Option& o : options)
    if (o.key() == key) return value_text(o);
  return "";
}

// Returns whether gradients are reduced per microbatch rather than once per step.
bool reduces_each(const Config& c, const std::vector<Option>& options) {
  const std::string how = text_of(options, kGradReduce);
  if (c.zero.stage < 2 || how.empty()) return false;
  return how == "each" || (how == "auto" && (c.zero.stage == 3 || c.parallel.pp == 1));
}

bool reduces_each(Config c) { return reduces_each(c, list_options(c)); }

// Resolves "auto", so that equal layouts have equal text.
void settle(Config& c, const std::vector<Option>& options) {
  c.parallel.sequence_parallel = auto_bool(c.sequence_parallel());
  c.parallel.settle(c.parallel.pp);
  if (const std::string how = text_of(options, kGradReduce); !how.empty())
    set(options, kGradReduce, reduces_each(c, options) ? "each" : "end");
}

Config checked(const Config& c) {
  CheckedLayout r = check_layout(c, {});
  if (r.problems.empty()) return std::move(r.config);
  Problems all;
  for (const Problem& p : r.problems) all.add(p.where, p.key, p.reason, p.fix);
  all.throw_if_any();
  return c;
}

void extend(const Config& base, const std::vector<LayoutAxis>& axes, size_t depth, int64_t max_ranks,
            std::vector<std::pair<std::string, std::string>>& settings, std::vector<Config>& out) {
  if (depth == axes.size()) {
    out.push_back(check_layout(base, settings).config);
    return;
  }
  for (const std::string& value : axes[depth].values) {
    settings.emplace_back(axes[depth].key, value);
    int64_t ranks = 1;
    for (const auto& [key, v] : settings)
      if (counts_ranks(key)) ranks *= std::stoll(v);
    if (ranks <= max_ranks && check_layout(base, settings).problems.empty())
      extend(base, axes, depth + 1, max_ranks, settings, out);
    settings.pop_back();
  }
}

// Every amp level with every 16-bit type, checked. No rule couples them to layout keys.
std::vector<PrecisionConfig> legal_levels(const Config& base) {
  std::vector<PrecisionConfig> out;
  for (const LayoutAxis& amp : layout_axes(base, 1)) {
    if (amp.key != "precision.amp") continue;
    for (const std::string& level : amp.values)
      for (const char* type : {"fp32", "bf16", "fp16"}) {
        if ((level == "O0") != (type == std::string("fp32"))) continue;
        std::vector<std::pair<std::string, std::string>> settings{{amp.key, level}, {"precision.dtype", type}};
        // Without a loss scale, which O3 lacks by default, gradients of so small a model are fp16 subnormals.
        if (level == "O3" && type == std::string("fp16") && base.precision.loss_scale == PrecisionConfig().loss_scale)
          settings.emplace_back("precision.loss_scale", "4096");
        const CheckedLayout c = check_layout(base, settings);
        if (c.problems.empty()) out.push_back(c.config.precision);
      }
  }
  return out;
}

}  // namespace

Config one_rank(const Config& c) {
  Config r = c;
  r.train.grad_accum = c.train.grad_accum * std::max<int64_t>(c.parallel.dp, 1);
  r.parallel = ParallelConfig();
  r.parallel.dp = 1;
  r.zero = ZeroConfig();
  r.zero.stage = 0;
  return checked(r);
}

Config flat(const Config& c) {
  Config r = c;
  r.parallel = ParallelConfig();
  r.parallel.tp = c.parallel.tp;
  r.parallel.dp = c.parallel.dp;
  r.parallel.cp = c.parallel.cp;
  r.parallel.ep = c.parallel.ep;
  r.parallel.sequence_parallel = auto_bool(c.sequence_parallel());
  r.zero = ZeroConfig();
  const bool each = reduces_each(c);
  r.zero.stage = each ? 2 : 0;        // keeps the order of additions
  r.zero.prescale = c.zero.prescale;  // keeps the rounding before them
  r.zero.predivide_factor = c.zero.predivide_factor;
  if (each) set(list_options(r), kGradReduce, "each");
  return checked(r);
}

std::vector<LayoutAxis> layout_axes(const Config& c, int64_t max_ranks) {
  Config copy = c;
  std::vector<LayoutAxis> out;
  const std::vector<Option> options = list_options(copy);
  for (const char* key : kAxes)
    for (const Option& o : options)
      if (o.key() == key && (o.key() != "parallel.ep" || c.model.moe.experts > 0))
        out.push_back({key, values_of(o, o.section == "parallel" ? max_ranks : INT64_MAX)});
  return out;
}

CheckedLayout check_layout(const Config& base, const std::vector<std::pair<std::string, std::string>>& settings) {
  static const std::map<std::string, std::string> kNoPosition;
  CheckedLayout out{base, {}};
  out.config.train.global_batch = 0;
  const std::vector<Option> options = list_options(out.config);
  for (const auto& [key, value] : settings) set(options, key, value);
  Problems problems;
  std::vector<std::string> notes;
  resolve_and_check(out.config, {.origin = kNoPosition}, problems, notes);
  out.problems = problems.list();
  if (out.problems.empty()) settle(out.config, options);
  return out;
}

std::vector<Config> legal_layouts(const Config& base, int64_t max_ranks, bool precisions) {
  Config plain = base;
  const std::string partition = plain.parallel.partition;
  plain.parallel = ParallelConfig();
  if (partition.find(',') == std::string::npos) plain.parallel.partition = partition;  // a list is valid for one pp
  plain.parallel.dp = 1;
  plain.zero = ZeroConfig();
  std::vector<std::pair<std::string, std::string>> settings;
  std::vector<Config> all, out;
  std::vector<LayoutAxis> axes = layout_axes(plain, max_ranks);
  std::erase_if(axes, [](const LayoutAxis& a) { return is_precision(a.key); });
  extend(plain, axes, 0, max_ranks, settings, all);
  const std::vector<PrecisionConfig> levels = precisions ? legal_levels(plain) : std::vector{plain.precision};
  std::set<std::string> known;
  for (Config& c : all) {
    if (!known.insert(config_json(c)).second) continue;
    for (const PrecisionConfig& level : levels) {
      c.precision = level;
      out.push_back(c);
    }
  }
  const auto reference = [](const Config& c) {
    return std::tuple(c.precision.amp, c.precision.dtype, c.parallel.dp, c.parallel.tp, c.parallel.sequence_parallel);
  };
  std::stable_sort(out.begin(), out.end(),
                   [&](const Config& a, const Config& b) { return reference(a) < reference(b); });
  return out;
}

std::string layout_text(const Config& c) {
  const ParallelConfig& p = c.parallel;
  std::string out = fmt::format("tp {} pp {} dp {}", p.tp, p.pp, p.dp);
  if (p.cp > 1) out += fmt::format(" cp {}", p.cp);
  if (p.ep > 1) out += fmt::format(" ep {}", p.ep);
  if (p.pp > 1) out += " " + p.schedule;
  if (p.vpp > 1) out += fmt::format(" vpp {}", p.vpp);
  if (p.extra_in_flight > 0) out += fmt::format(" extra_in_flight {}", p.extra_in_flight);
  out += fmt::format(" m {}", c.train.grad_accum);
  if (p.partition != "flops") out += " partition " + p.partition;
  if (c.sequence_parallel()) out += " sequence_parallel";
  out += fmt::format(" zero {}{}", c.zero.stage, reduces_each(c) ? " each" : "");
  if (p.recompute != Recompute::kNone) out += fmt::format(" recompute {}", name_of(p.recompute));
  if (c.precision.amp != AmpLevel::kO0)
    out += fmt::format(" {} {}", name_of(c.precision.amp), float_name(c.precision.dtype));
  return out;
}

}  // namespace gt
