// Translation of one Megatron-LM command line.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "kernels/core/check.h"
#include "launch/options/json_text.h"
#include "launch/tools/translate/megatron_defaults.h"
#include "launch/tools/translate/megatron_flags.h"
#include "launch/tools/translate/megatron_line.h"
#include "launch/tools/translate/megatron_vocab.h"
#include "optim/optimizer_rules.h"

namespace gt {
namespace {

using enum MegatronStatus;
using Given = MegatronLine::Given;

std::vector<std::string> split(std::string_view text, char by) {
  std::vector<std::string> out;
  for (size_t i = 0; i < text.size();) {
    const size_t end = std::min(text.find(by, i), text.size());
    out.emplace_back(text.substr(i, end - i));
    i = end + 1;
  }
  return out;
}

// Removed flags and their replacements.
class Translation {
 public:
  Translation(std::vector<std::string>& words, std::span<const std::string> own, Problems& problems)
      : words_(words), problems_(problems), line_(words, own, problems) {}

  MegatronReport run() {
    if (line_.whole()) vocabulary_ = megatron_vocabulary(line_);
    for (const Given& g : line_.given()) one(g);
    set_vocabulary();
    std::vector<AbsentSetting> absent = megatron_defaults(line_);  // before words_ grows
    words_.insert(words_.end(), added_.begin(), added_.end());
    return {std::move(report_), std::move(spelled_), std::move(absent)};
  }

 private:
  void refuse(const Given& g, const std::string& why, const std::string& fix = "") {
    problems_.add(g.name(), "", why, fix);
  }

  void report(const Given& g, std::string_view what) {
    report_.push_back(
        fmt::format("megatron: {}{}{}: {}", g.name(), g.values.empty() ? "" : " ", fmt::join(g.values, " "), what));
  }

  // Appends the translation of a flag and a report line.
  void becomes(const Given& g, const std::vector<std::string>& ours, std::string_view why = {}) {
    added_.insert(added_.end(), ours.begin(), ours.end());
    for (const std::string& word : ours)
      if (word.starts_with("--")) spelled_[word] = g.name();
    report(g, fmt::format("{}{}{}", fmt::join(ours, " "), why.empty() ? "" : ", ", why));
  }

  std::string value(std::string_view name) const { return line_.value(name); }
  std::optional<int64_t> number(std::string_view name) const { return line_.number(name); }
  bool given(std::string_view name) const { return line_.has(name); }

  void one(const Given& g) {
    const MegatronFlag& f = *g.flag;
    const std::vector<std::string> legal = split(f.accepts, '|');
    if (f.name.starts_with("muon-") && !muon()) return report(g, "no effect: a flag of --optimizer muon");
    switch (f.status) {
      case kRefused: return refuse(g, fmt::format("is refused: {}", f.why));
      case kNoEffect: return report(g, fmt::format("no effect: {}", f.why));
      case kAlways:
        if (!legal.empty() && std::find(legal.begin(), legal.end(), g.values[0]) == legal.end())
          return refuse(g, fmt::format("{} is refused: {}", g.values[0], f.why));
        return report(g, fmt::format("always the case: {}", f.why));
      case kTranslated: break;
    }
    if (f.accepts.empty()) return by_rule(g);
    std::vector<std::string> ours = split(f.accepts, ' ');
    ours.insert(ours.end(), g.values.begin(), g.values.end());
    becomes(g, ours, f.why);
  }

  // Maps the value by a table; rejects others with the list of legal ones.
  void choice(const Given& g, const std::string& flag,
              const std::vector<std::pair<std::string_view, std::string_view>>& words) {
    std::string list;
    for (const auto& [theirs, ours] : words) {
      if (g.values[0] == theirs) return becomes(g, {flag, std::string(ours)});
      list += fmt::format("{}{}", list.empty() ? "" : ", ", theirs);
    }
    refuse(g, fmt::format("{} is refused: expected one of {}", g.values[0], list));
  }

  void by_rule(const Given& g) {
    struct Rule {
      std::string_view name;
      void (Translation::*apply)(const Given&);
    };
    static constexpr Rule kRules[] = {
        {"optimizer", &Translation::optimizer},
        {"fp8-recipe", &Translation::fp8_recipe},
        {"main-grads-dtype", &Translation::main_gradients},
        {"adam-beta1", &Translation::betas},
        {"adam-beta2", &Translation::betas},
        {"max-position-embeddings", &Translation::positions},
        {"no-position-embedding", &Translation::no_positions},
        {"use-rope-scaling", &Translation::rope_scaling},
        {"apply-layernorm-1p", &Translation::zero_centered},
        {"qk-layernorm", &Translation::qk_norm},
        {"window-size", &Translation::window},
        {"swiglu", &Translation::swiglu},
        {"disable-bias-linear", &Translation::no_biases},
        {"num-layers-per-virtual-pipeline-stage", &Translation::virtual_stages},
        {"lr-warmup-fraction", &Translation::warmup},
        {"train-samples", &Translation::samples},
        {"recompute-method", &Translation::recompute},
        {"distributed-timeout-minutes", &Translation::timeout},
        {"load", &Translation::load},
        {"no-load-optim", &Translation::weights_only},
        {"finetune", &Translation::weights_only},
        {"use-checkpoint-args", &Translation::checkpoint_args},
        {"eval-iters", &Translation::eval_steps},
        {"rampup-batch-size", &Translation::rampup},
        {"decoupled-lr", &Translation::decoupled_lr},
        {"decoupled-min-lr", &Translation::decoupled_minimum},
        {"exit-interval", &Translation::exit_interval},
        {"no-bias-gelu-fusion", &Translation::gelu_kernel},
        {"tokenizer-model", &Translation::tokenizer_model},
        {"vocab-size", &Translation::vocabulary_flag},
        {"padded-vocab-size", &Translation::vocabulary_flag},
        {"make-vocab-size-divisible-by", &Translation::vocabulary_flag},
        {"vocab-file", &Translation::vocabulary_flag},
        {"merge-file", &Translation::vocabulary_flag},
        {"tokenizer-type", &Translation::vocabulary_flag},
        {"legacy-tokenizer", &Translation::vocabulary_flag},
        {"vocab-extra-ids", &Translation::vocabulary_flag},
    };
    for (const Rule& r : kRules)
      if (r.name == g.flag->name) return (this->*r.apply)(g);
    by_choice(g);
  }

  // A value that is one of ours under another name.
  void by_choice(const Given& g) {
    const std::string_view name = g.flag->name;
    if (name == "muon-coefficient-type")
      return choice(g, "--optim.muon_coefficients",
                    {{"simple", "simple"}, {"quintic", "quintic"}, {"polar_express", "polar_express"}});
    if (name == "muon-fp32-matmul-prec")
      return choice(g, "--optim.muon_dtype", {{"low", "bf16"}, {"medium", "bf16"}, {"high", "fp32"}});
    if (name == "muon-scale-mode" || name == "muon-extra-scale-factor") return report(g, "part of --optim.muon_scale");
    if (name == "lr-decay-style")
      return choice(g, "--schedule.type",
                    {{"constant", "constant"},
                     {"linear", "linear"},
                     {"cosine", "cosine"},
                     {"inverse-square-root", "inverse_sqrt"},
                     {"WSD", "wsd"}});
    if (name == "data-parallel-sharding-strategy")
      return choice(g, "--zero.stage",
                    {{"no_shard", "0"}, {"optim", "1"}, {"optim_grads", "2"}, {"optim_grads_params", "3"}});
    if (name == "fp8-format")
      return choice(g, "--precision.fp8", {{"hybrid", value("fp8-recipe") == "tensorwise" ? "current" : "delayed"}});
    if (name == "position-embedding-type")
      return choice(g, "--model.position", {{"learned_absolute", "learned"}, {"rope", "rotary"}});
    if (name == "normalization")
      return choice(g, "--model.norm", {{"LayerNorm", "layer_norm"}, {"RMSNorm", "rms_norm"}});
    if (name == "lr-decay-samples") return as_steps(g, "--schedule.total_steps");
    if (name == "lr-warmup-samples") return as_steps(g, "--schedule.warmup_steps");
    if (name == "lr-wsd-decay-samples") return as_steps(g, "--schedule.decay_steps");
    if (name == "save") return becomes(g, {"--checkpoint.dir", g.values[0]});
    if (name == "tensorboard-dir")
      return becomes(g, {"--log.tensorboard", "true"}, "event files are in the run's folder, log.dir/log.name");
    GT_CHECK(false, "no rule for --", name);
  }

  void fp8_recipe(const Given& g) {
    if (g.values[0] != "delayed" && g.values[0] != "tensorwise")
      return refuse(g, fmt::format("{} is refused: expected one of delayed, tensorwise", g.values[0]));
    report(g, given("fp8-format") ? "part of --precision.fp8" : "no effect: it belongs to --fp8-format");
  }

  // Gradients are stored, accumulated and reduced in it.
  void main_gradients(const Given& g) {
    if (g.values[0] != "fp32" && g.values[0] != "bf16")
      return refuse(g, fmt::format("{} is refused: expected one of fp32, bf16", g.values[0]));
    becomes(g, {"--precision.grad_dtype", g.values[0], "--precision.reduce_dtype", g.values[0]});
  }

  bool muon() const { return value("optimizer") == "muon" || value("optimizer") == "dist_muon"; }

  void optimizer(const Given& g) {  // Megatron's adam uses decoupled weight decay
    if (muon()) return muon(g);
    std::vector<std::pair<std::string_view, std::string_view>> names;
    for (const OptimizerRule& r : optimizer_rules())
      for (const std::string_view theirs : r.megatron) names.emplace_back(theirs, r.name);
    choice(g, "--optim.type", names);
  }

  // With Megatron's defaults of the flags that are unset. Its spectral scale is sqrt(max(rows, cols)), shape_scaling
  // sqrt(max(1, rows / cols)).
  void muon(const Given& g) {
    const auto or_else = [&](const char* flag, const char* standard) {
      const std::string set = value(flag);
      return set.empty() ? standard : set;
    };
    const std::string mode = or_else("muon-scale-mode", "spectral"), factor = or_else("muon-extra-scale-factor", "1");
    double scale = 0;
    const bool number = parse_double(factor, scale), like_adamw = mode == "spectral" && number && scale == 0.2;
    if (!like_adamw && !(mode == "shape_scaling" && number && scale == 1))
      return refuse(g,
                    fmt::format("--muon-scale-mode {} with --muon-extra-scale-factor {} is refused: expected spectral "
                                "with 0.2, AdamW's size, or shape_scaling with 1",
                                mode, factor),
                    "with weight decay 0, another factor is one of the learning rate: --optim.muon_lr_scale");
    std::vector<std::string> ours{"--optim.type", "muon", "--optim.muon_scale", like_adamw ? "adamw" : "original"};
    if (!given("muon-momentum")) ours.insert(ours.end(), {"--optim.momentum", "0.9"});
    if (!given("muon-nesterov") && !given("muon-use-nesterov")) ours.insert(ours.end(), {"--optim.nesterov", "false"});
    if (!given("muon-coefficient-type")) ours.insert(ours.end(), {"--optim.muon_coefficients", "quintic"});
    becomes(g, ours, "weights of linear layers, Q, K, V, gate and up apart; AdamW the rest");
  }

  void betas(const Given& g) {  // unset betas take Megatron's defaults
    const std::string one = value("adam-beta1"), two = value("adam-beta2");
    if (g.flag->name == "adam-beta2" && !one.empty()) return report(g, "the second of --optim.betas");
    becomes(g, {"--optim.betas", fmt::format("{},{}", one.empty() ? "0.9" : one, two.empty() ? "0.999" : two)});
  }

  void positions(const Given& g) {
    const auto rows = number("max-position-embeddings"), seq = number("seq-length");
    if (!rows) return refuse(g, fmt::format("expected a whole number 1.., found {}", g.values[0]));
    if (seq && *rows < *seq) return refuse(g, fmt::format("{} is less than --seq-length {}", *rows, *seq));
    if (!seq) return becomes(g, {"--model.seq", g.values[0]});
    report(g, *rows == *seq ? "always the case: there are as many positions as --seq-length"
                            : "no effect: positions beyond --seq-length are never read; there are none here");
  }

  bool rms_norm() const { return value("normalization") == "RMSNorm"; }

  void no_positions(const Given& g) {
    if (value("position-embedding-type") != "rope" && !given("use-rotary-position-embeddings"))
      return refuse(g, "is refused: attention alone does not see positions; add --position-embedding-type rope");
    report(g, "always the case: rotary positions have no table");
  }

  // Megatron's constants of Llama 3.
  void rope_scaling(const Given& g) {
    std::vector<std::string> ours = split(
        "--model.rope_scaling llama3 --model.rope_low_freq_factor 1 --model.rope_high_freq_factor 4 "
        "--model.rope_original_seq 8192",
        ' ');
    if (!given("rope-scaling-factor")) ours.insert(ours.end(), {"--model.rope_factor", "8"});
    becomes(g, ours);
  }

  void zero_centered(const Given& g) {
    if (rms_norm()) return becomes(g, {"--model.norm_zero_centered", "true"});
    report(g, "no effect: a layer norm's weights are stored as they are, and have no weight decay");
  }

  void qk_norm(const Given& g) {
    if (!rms_norm()) return refuse(g, "is refused: queries and keys have an RMSNorm; add --normalization RMSNorm");
    becomes(g, {"--model.qk_norm", "head"}, "RMSNorm of each head's queries and keys");
  }

  // (W,0): W keys before a query and itself.
  void window(const Given& g) {
    std::string text = g.values[0];
    std::erase_if(text, [](char c) { return c == '(' || c == ')' || c == ' '; });
    const std::vector<std::string> ends = split(text, ',');
    int64_t before = 0, after = 0;
    if (ends.size() != 2 || !parse_int(ends[0], before) || !parse_int(ends[1], after) || before < -1 || after > 0)
      return refuse(g, fmt::format("expected W,0: keys before a query and after it, found {}", g.values[0]));
    becomes(g, {"--model.window", std::to_string(before + 1)}, before < 0 ? "all keys" : "the query's own key counts");
  }

  void swiglu(const Given& g) {
    std::vector<std::string> ours{"--model.activation", "silu", "--model.gated", "true"};
    const auto hidden = number("hidden-size");
    if (hidden && value("ffn-hidden-size").empty())  // Megatron's default width
      ours.insert(ours.end(), {"--model.ffn", std::to_string(*hidden * 8 / 3 / 64 * 64)});
    becomes(g, ours, "gated MLP with SiLU");
  }

  void no_biases(const Given& g) {
    std::vector<std::string> ours{"--model.out_bias", "false", "--model.mlp_bias", "false"};
    if (!given("add-qkv-bias")) ours.insert(ours.end(), {"--model.qkv_bias", "false"});
    becomes(g, ours, "linear layers without biases");
  }

  void as_steps(const Given& g, const std::string& flag) {
    const auto n = number(g.flag->name), batch = number("global-batch-size");
    if (!n || !batch || *n < *batch)
      return refuse(g, fmt::format("becomes {} with --global-batch-size: expected both as whole numbers", flag));
    becomes(g, {flag, std::to_string(*n / *batch)}, *n % *batch == 0 ? "" : "rounded down to whole batches");
  }

  void virtual_stages(const Given& g) {
    const auto layers = number("num-layers"), pp = number("pipeline-model-parallel-size"), each = number(g.flag->name);
    if (!layers || !pp || !each || *layers % (*pp * *each) != 0)
      return refuse(
          g,
          fmt::format("expected layers that divide --num-layers {} / --pipeline-model-parallel-size {}, found {}",
                      layers.value_or(0), pp.value_or(0), g.values[0]),
          "or give --parallel.vpp and --parallel.schedule interleaved");
    becomes(g, {"--parallel.schedule", "interleaved", "--parallel.vpp", std::to_string(*layers / (*pp * *each))});
  }

  void warmup(const Given& g) {
    const auto steps = number("lr-decay-iters"), all = number("train-iters");
    double share = 0;
    if (!parse_double(g.values[0], share) || share < 0 || share > 1)
      return refuse(g, fmt::format("expected a number 0..1, found {}", g.values[0]));
    if (!steps && !all) return refuse(g, "is a share of --lr-decay-iters or --train-iters, and neither is given");
    const double of = static_cast<double>(steps ? *steps : *all);
    becomes(g, {"--schedule.warmup_steps", std::to_string(static_cast<int64_t>(share * of))});
  }

  void samples(const Given& g) {
    const auto n = number("train-samples"), batch = number("global-batch-size");
    if (!n || !batch || *n / *batch < 1)
      return refuse(g, "becomes --train.steps with --global-batch-size: expected both as whole numbers",
                    "give --train-iters");
    becomes(g, {"--train.steps", std::to_string(*n / *batch)});
  }

  void recompute(const Given& g) {
    if (g.values[0] == "block") return report(g, "always the case: the first --recompute-num-layers of a stage");
    if (g.values[0] != "uniform")
      return refuse(g, fmt::format("{} is refused: expected uniform or block", g.values[0]));
    // Megatron's uniform method checkpoints chunks of several layers. Here each block is its own chunk, and all are
    // recomputed.
    becomes(g, {"--parallel.recompute_layers", "0"}, "every block");
  }

  void timeout(const Given& g) {
    const auto minutes = number(g.flag->name);
    if (!minutes) return refuse(g, fmt::format("expected a whole number 1.., found {}", g.values[0]));
    becomes(g, {"--comm.stall_abort_s", std::to_string(*minutes * 60)});
  }

  std::string either(std::string_view theirs, std::string_view ours) const {
    const std::string given = value(theirs);
    return given.empty() ? value(ours) : given;
  }

  // Whether --save names a folder that holds something to resume from.
  bool resumes() const {
    std::error_code ec;
    const std::string folder = either("save", "checkpoint.dir");
    return !folder.empty() && std::filesystem::is_directory(folder, ec) && !std::filesystem::is_empty(folder, ec);
  }

  void load(const Given& g) {
    if (g.values[0] == value("save")) return report(g, "always the case: a run resumes from its own checkpoints");
    becomes(g, {"--checkpoint.load_from", g.values[0]});
  }

  // Weights alone: without the optimizer's state, and for --finetune without the step either.
  void weights_only(const Given& g) {
    const std::string from = either("load", "checkpoint.load_from"), save = either("save", "checkpoint.dir");
    if (given("config") || (!from.empty() && from != save)) return becomes(g, {"--checkpoint.load", "weights"});
    if (resumes() && (!from.empty() || g.flag->name == "no-load-optim"))
      return refuse(g, fmt::format("is refused: {} holds a run, which resumes with its optimizer's state", save),
                    "leave it out to resume; to begin anew from its weights, give it as --load and another --save");
    report(g, "no effect: nothing is loaded; a run that resumes from its own checkpoints keeps its optimizer's state");
  }

  void checkpoint_args(const Given& g) {
    for (const char* flag : {"num-layers", "hidden-size", "num-attention-heads"})
      if (value(flag).empty() && !given("load")) return report(g, "no effect: nothing is loaded");
    for (const char* flag : {"num-layers", "hidden-size", "num-attention-heads"})
      if (value(flag).empty())
        return refuse(g, fmt::format("is refused: the model comes from the command line, which lacks --{}", flag),
                      "give the flags of the model; a checkpoint of another model is refused");
    report(g, "no effect: the model comes from the command line; a checkpoint of another model is refused");
  }

  void eval_steps(const Given& g) {
    if (g.values[0] == "0") return becomes(g, {"--train.eval_every", "0"}, "no evaluation");
    becomes(g, {"--train.eval_steps", g.values[0]});
  }

  // A batch that grows from its end on is one that does not grow.
  void rampup(const Given& g) {
    if (g.values[0] == value("global-batch-size")) return report(g, "no effect: it starts at --global-batch-size");
    refuse(g, "is refused: the batch does not grow within a run",
           "leave it out, or train in parts that resume with another --global-batch-size");
  }

  // A rate of its own for embedding and head; here the schedule times a factor, its minimum included.
  void decoupled_lr(const Given& g) {
    double rate = 0, lr = 0, least = 0, own_least = 0;
    const std::string min_lr = value("min-lr"), own = value("decoupled-min-lr");
    if (!parse_double(g.values[0], rate) || rate <= 0 || !parse_double(value("lr"), lr) || lr <= 0)
      return refuse(g, "becomes a factor of --lr: expected both as numbers above 0");
    if ((!min_lr.empty() && !parse_double(min_lr, least)) || (!own.empty() && !parse_double(own, own_least)))
      return refuse(g, "expected numbers as --min-lr and --decoupled-min-lr");
    if (own.empty()) own_least = least;
    if (std::abs(own_least - least * rate / lr) > 1e-6 * std::max(own_least, least * rate / lr))
      return refuse(g,
                    fmt::format("is refused with this minimum: the rate is a factor, {:g}, of the schedule's, whose "
                                "minimum then is {:g}, not {:g}",
                                rate / lr, least * rate / lr, own_least),
                    fmt::format("--decoupled-min-lr {:g}, or --min-lr 0", least * rate / lr));
    if (given("optim.groups"))
      return refuse(g, "is refused beside --optim.groups", "write it there: ^(embed|head)\\.weight$ lr_scale=FACTOR");
    becomes(g, {"--optim.groups", fmt::format("^(embed|head)\\.weight$ lr_scale={:.9g}", rate / lr)},
            "the schedule times this");
  }

  void decoupled_minimum(const Given& g) {
    if (given("decoupled-lr")) return report(g, "part of --decoupled-lr");
    report(g, "no effect: it belongs to --decoupled-lr");
  }

  void exit_interval(const Given& g) {
    const auto at = number("exit-interval"), all = number("train-iters");
    if (at && all && *at >= *all) return report(g, "no effect: --train-iters ends the run first");
    refuse(g, "is refused: a run ends at train.steps, or saves and ends by SIGTERM or SIGUSR1",
           at && all ? fmt::format("--train-iters {} with --lr-decay-iters {}, which keeps the curve; then resume with "
                                   "--checkpoint.allow_change train.steps",
                                   *at, number("lr-decay-iters").value_or(*all))
                     : "leave it out");
  }

  // GELU in its tanh form is that of the fused kernel.
  void gelu_kernel(const Given& g) {
    if (given("swiglu") || given("squared-relu") || given("openai-gelu"))
      return report(g, "no effect: the MLP has another activation");
    becomes(g, {"--model.activation", "gelu_erf"}, "the fused kernel alone computes GELU by tanh");
  }

  void tokenizer_model(const Given& g) {
    if (!line_.whole()) return becomes(g, {"--data.tokenizer", g.values[0]});
    if (!vocabulary_.tokenizer.empty()) return becomes(g, {"--data.tokenizer", g.values[0]});
    report(g, "no effect: token files contain ids, and the size of the vocabulary is given");
  }

  // On a whole line they give model.vocab together; alone, only a size means something here.
  void vocabulary_flag(const Given& g) {
    if (line_.whole())
      return report(g, vocabulary_.padded > 0 ? "part of --model.vocab" : "no effect: --model.vocab is given");
    if (g.flag->name == "vocab-size" || g.flag->name == "padded-vocab-size")
      return becomes(g, {"--model.vocab", g.values[0]});
    report(g, "no effect: token files contain ids; set model.vocab");
  }

  void set_vocabulary() {
    if (!vocabulary_.problem.empty()) problems_.add("--" + vocabulary_.flag, "", vocabulary_.problem, vocabulary_.fix);
    if (vocabulary_.padded > 0) {
      added_.insert(added_.end(), {"--model.vocab", std::to_string(vocabulary_.padded)});
      report_.push_back(fmt::format("megatron: --model.vocab {}: {}", vocabulary_.padded, vocabulary_.how));
    }
    if (!vocabulary_.tokenizer.empty() && !given("tokenizer-model") && !given("data.tokenizer"))
      added_.insert(added_.end(), {"--data.tokenizer", vocabulary_.tokenizer});
  }

  std::vector<std::string>& words_;
  Problems& problems_;
  const MegatronLine line_;
  MegatronVocabulary vocabulary_;
  std::vector<std::string> added_, report_;
  std::map<std::string, std::string> spelled_;
};

}  // namespace

MegatronReport consume_megatron_flags(std::vector<std::string>& words, std::span<const std::string> own,
                                      Problems& problems) {
  return Translation(words, own, problems).run();
}

}  // namespace gt
