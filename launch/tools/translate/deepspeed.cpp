#include "launch/tools/translate/deepspeed.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/core/check.h"
#include "launch/options/foreign_text.h"
#include "launch/tools/translate/deepspeed_translation.h"
#include "optim/optimizer_rules.h"

namespace gt {
namespace {

using Kind = JsonValue::Kind;

// Returns whether a block is disabled or a value equals DeepSpeed's default, so that nothing is requested.
bool requests_nothing(const DsValue& v) {
  if (const JsonValue* enabled = v.value.find("enabled"); enabled && enabled->kind == Kind::kBool)
    return !enabled->boolean;
  if (v.key->type == DsType::kOpaque && v.value.kind == Kind::kBool) return !v.value.boolean;
  double x, y;
  const std::string found = shown(v.value), standard(v.key->standard);
  return !standard.empty() && (found == standard || (parse_double(found, x) && parse_double(standard, y) && x == y));
}

// Handles keys without a rule of their own: rejected, without effect, or one of our keys under another name.
void plain_rows(DsTranslation& t, const DsFile& file) {
  for (const DsValue& v : file.values) {
    const DsKey& k = *v.key;
    const std::string native(k.native);
    if (v.is_auto && !native.empty())
      t.report(k.path, "the native value of " + native);
    else if (k.status == DsStatus::kRefused && !requests_nothing(v))
      t.refuse(k.path, fmt::format("{} is refused: {}", shown(v.value), k.why));
    else if (k.status == DsStatus::kRefused)
      t.report(k.path, "off, as always here");
    else if (k.status == DsStatus::kIgnored && !requests_nothing(v))
      t.report(k.path, fmt::format("no effect: {}", k.why));
    else if (!native.empty())
      t.set(k.path, native, shown(v.value));
    else if (k.status == DsStatus::kHonoured && !k.why.empty())
      t.report(k.path, std::string(k.why));
  }
}

// Reports every remaining key: those of disabled blocks, and those that a rule consumed together with another.
void report_remaining_keys(DsTranslation& t, const DsFile& file) {
  for (const DsValue& v : file.values) {
    if (v.key->type == DsType::kBlock || t.reported(v.key->path)) continue;
    std::string enabled;  // enabling key of its block or of the enclosing block
    bool off = false;
    for (std::string_view p = v.key->path; !off && p.find('.') != std::string_view::npos;) {
      p = p.substr(0, p.rfind('.'));
      enabled = std::string(p) + ".enabled";
      off = find_deepspeed_key(enabled) && !t.flag(enabled, false);
    }
    t.report(v.key->path, off ? "no effect: " + enabled + " is not true" : "honoured");
  }
}

void note_vocabulary(DsTranslation& t) {
  if (!t.given("vocabulary_size")) return;
  t.out.vocabulary = t.integer("vocabulary_size", 0);
  t.report("vocabulary_size", t.out.vocabulary % 8 == 0
                                  ? "compared with model.vocab"
                                  : "compared with model.vocab; not a multiple of 8, which 16-bit GEMMs prefer");
}

void require_types(DsTranslation& t, const DsFile& file, const char* block) {
  if (t.has(block) && !t.has(std::string(block) + ".type")) t.refuse(block, "has no type", "add \"type\"");
  const std::string params = std::string(block) + ".params.";
  std::string type = t.text(std::string(block) + ".type", "");
  std::transform(type.begin(), type.end(), type.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const DsValue& v : file.values) {
    const std::string list(v.key->of);
    if (v.key->path.substr(0, params.size()) != params || list.empty() || type.empty()) continue;
    if (("|" + list + "|").find("|" + type + "|") == std::string::npos)
      t.refuse(v.key->path, fmt::format("is not a parameter of {}", t.text(std::string(block) + ".type", "")),
               fmt::format("it belongs to {}", list));
  }
}

void finish_deepspeed(const DsConfig& ds, Config& c, std::map<std::string, std::string>& origin,
                      std::vector<std::string>& notes) {
  const auto unset_section = [&](const std::string& prefix) {
    const auto it = origin.lower_bound(prefix);
    return it == origin.end() || it->first.rfind(prefix, 0) != 0;
  };
  if (!ds.has_scheduler && unset_section("schedule.")) {
    c.schedule.type = "constant";
    notes.push_back("deepspeed: no scheduler: the learning rate is constant");
  } else if (!ds.has_scheduler) {
    notes.push_back("deepspeed: no scheduler: schedule.type " + c.schedule.type + " of the native config is kept");
  }
  const std::string& s = c.schedule.type;
  if (!origin.count("schedule.ds_exact"))
    c.schedule.ds_exact = s == "one_cycle" || s == "lr_range_test" || s.rfind("warmup", 0) == 0;
  if (!ds.has_clipping && !origin.count("optim.grad_clip"))
    notes.push_back(
        fmt::format("deepspeed: gradient_clipping is absent: {:g}, as in DeepSpeed 0.19.6; 0.16.5 does not "
                    "clip (gradient_clipping 0)",
                    c.optim.grad_clip));
  if (ds.vocabulary != 0 && ds.vocabulary != c.model.vocab)
    notes.push_back(fmt::format("deepspeed: vocabulary_size {} is not model.vocab {}, which is used", ds.vocabulary,
                                c.model.vocab));
  if (ds.prefetch_numel >= 0 && !origin.count("zero.prefetch")) {
    // Whole blocks until the size is covered: attention 4 h^2, MLP 2 h ffn, remaining terms linear in h.
    const int64_t h = c.model.hidden, ffn = c.model.ffn > 0 ? c.model.ffn : 4 * h;
    const int64_t block = 4 * h * h + 2 * h * ffn + 9 * h + ffn;
    c.zero.prefetch = std::min<int64_t>(64, (ds.prefetch_numel + block - 1) / block);
    origin["zero.prefetch"] = ds.prefetch_origin;
    notes.push_back(
        fmt::format("deepspeed: zero_optimization.stage3_prefetch_bucket_size {} -> zero.prefetch {} "
                    "(blocks of {} elements)",
                    ds.prefetch_numel, c.zero.prefetch, block));
  }
}

}  // namespace

const DsValue* DsTranslation::given(std::string_view path) const {
  const DsValue* v = file_.find(path);
  return v && !v->is_auto ? v : nullptr;
}

bool DsTranslation::is_auto(std::string_view path) const {
  const DsValue* v = file_.find(path);
  return v && v->is_auto;
}

bool DsTranslation::flag(std::string_view path, bool standard) const {
  const DsValue* v = given(path);
  return v ? v->value.boolean : standard;
}

double DsTranslation::number(std::string_view path, double standard) const {
  const DsValue* v = given(path);
  double x;
  return v && parse_double(v->value.text, x) ? x : standard;
}

int64_t DsTranslation::integer(std::string_view path, int64_t standard) const {
  const DsValue* v = given(path);
  int64_t x;
  return v && parse_int(v->value.text, x) ? x : standard;
}

std::string DsTranslation::text(std::string_view path, const std::string& standard) const {
  const DsValue* v = given(path);
  return v ? v->value.text : standard;
}

std::string DsTranslation::where(std::string_view path) const {
  for (std::string_view p = path;; p = p.substr(0, p.rfind('.'))) {
    if (const DsValue* v = file_.find(p)) return v->where;
    if (p.find('.') == std::string_view::npos) return file_.name;
  }
}

void DsTranslation::set(std::string_view path, const std::string& native, const std::string& word,
                        const std::string& comment) {
  set(path, native, std::vector<std::string>{word}, comment);
}

void DsTranslation::set(std::string_view path, const std::string& native, const std::vector<std::string>& words,
                        const std::string& comment) {
  quietly(path, native, words);
  report(path, fmt::format("-> {} {}{}", native, fmt::join(words, ","), comment.empty() ? "" : " (" + comment + ")"));
}

void DsTranslation::quietly(std::string_view path, const std::string& native, const std::vector<std::string>& words) {
  out.settings.push_back({native, words, origin(path)});
}

void DsTranslation::report(std::string_view path, const std::string& what) {
  const DsValue* v = file_.find(path);
  const std::string value = v && v->key->type != DsType::kBlock ? " " + shown(v->value) : "";
  const std::ptrdiff_t index = v ? v - file_.values.data() : -1;
  report_.emplace_back(index, fmt::format("{}{}{} {}", path, value, what.rfind("->", 0) == 0 ? "" : ":", what));
}

bool DsTranslation::reported(std::string_view path) const {
  const std::ptrdiff_t index = file_.find(path) - file_.values.data();
  return std::any_of(report_.begin(), report_.end(), [&](const auto& r) { return r.first == index; });
}

std::vector<std::string> DsTranslation::sorted_report() {
  std::stable_sort(report_.begin(), report_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> lines;
  for (auto& [index, line] : report_) lines.push_back(std::move(line));
  return lines;
}

void DsTranslation::refuse(std::string_view path, const std::string& reason, const std::string& fix) {
  add_deepspeed_problem(problems_, where(path), path, reason, fix);
}

DsConfig translate_deepspeed(const DsFile& file, Problems& problems) {
  DsTranslation t(file, problems);
  t.out.name = file.name;
  plain_rows(t, file);
  require_types(t, file, "optimizer");
  require_types(t, file, "scheduler");
  translate_optimizer(t);
  translate_scheduler(t);
  translate_precision(t);
  translate_zero(t);
  translate_layout(t);
  translate_logs(t);
  translate_training(t);
  note_vocabulary(t);
  for (const char* key : {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"})
    if (t.given(key)) t.out.replaced = {"train.global_batch", "train.micro_batch", "train.grad_accum"};
  if (t.out.has_optimizer) {
    t.out.replaced.insert(t.out.replaced.end(), {"optim.type", "optim.lr", "optim.weight_decay"});
    for (const std::string_view key : optimizer_keys()) t.out.replaced.push_back(cat("optim.", key));
  }
  if (t.out.has_scheduler) t.out.replaced.push_back("schedule.");
  if (t.out.has_precision) t.out.replaced.push_back("precision.");
  // "auto" leaves a key of a replaced block to --config.
  constexpr std::pair<const char*, const char*> kLeft[] = {
      {"train_batch_size", "train.global_batch"},
      {"train_micro_batch_size_per_gpu", "train.micro_batch"},
      {"gradient_accumulation_steps", "train.grad_accum"},
      {"optimizer.params.lr", "optim.lr"},
      {"optimizer.params.betas", "optim.betas"},
      {"optimizer.params.eps", "optim.eps"},
      {"optimizer.params.weight_decay", "optim.weight_decay"},
      {"scheduler.params.warmup_min_lr", "schedule.start_lr"},
      {"scheduler.params.warmup_num_steps", "schedule.warmup_steps"},
      {"scheduler.params.total_num_steps", "schedule.total_steps"}};
  for (const auto& [theirs, ours] : kLeft)
    if (t.is_auto(theirs)) t.out.left.emplace_back(ours);
  report_remaining_keys(t, file);
  t.out.report = t.sorted_report();
  for (size_t k = 0; k < std::min(file.unknown.size(), Problems::kListed); ++k) t.out.report.push_back(file.unknown[k]);
  if (file.unknown.size() > Problems::kListed)
    t.out.report.push_back(fmt::format("… and {} more unknown keys, ignored", file.unknown.size() - Problems::kListed));
  return std::move(t.out);
}

ForeignReader deepspeed_reader(const std::string& source, bool allow_unknown_keys) {
  if (source.empty()) return {};
  return [=](Problems& problems) -> ForeignConfig {
    DsConfig ds;
    try {
      if (const UrlProblem url = url_problem(source))
        problems.add("--deepspeed_config", "", url.reason, url.fix);
      else
        ds = translate_deepspeed(read_deepspeed(read_deepspeed_text(source), allow_unknown_keys, problems), problems);
    } catch (const Error& e) { problems.add("--deepspeed_config", "", e.what()); }
    ForeignConfig out = ds;
    out.trainer = "deepspeed";
    out.finish = [ds](auto&... all) { finish_deepspeed(ds, all...); };
    return out;
  };
}

const ForeignNames kDeepspeedNames{[](std::string_view name) -> std::string {
                                     std::string word(name);
                                     std::replace(word.begin(), word.end(), '-', '_');
                                     for (const DsKey& k : deepspeed_keys())
                                       if (!k.native.empty() && k.name() == word) return std::string(k.native);
                                     return "";
                                   },
                                   [](std::string_view section, const std::string& file) {
                                     return find_deepspeed_key(section) == nullptr
                                                ? ""
                                                : "a key of DeepSpeed: give the file as --deepspeed_config " + file;
                                   }};

}  // namespace gt
