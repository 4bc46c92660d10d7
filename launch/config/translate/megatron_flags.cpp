#include "launch/config/translate/megatron_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "kernels/core/check.h"
#include "launch/options/help_text.h"
#include "launch/options/json_text.h"

namespace gt {
namespace {

using enum MegatronStatus;

constexpr std::string_view kNoBlock = "there is no such block here",
                           kFiles = "token files contain ids; set model.vocab",
                           kLogs = "logs are files here: log.jsonl, TensorBoard",
                           kFused = "kernels are chosen by the device",
                           kTimers = "log.jsonl contains the times of every step",
                           kTrace = "log.trace_steps FIRST:END writes a trace of these steps",
                           kGroups = "one schedule serves all weights; optim.groups scales its rate for some of them";

constexpr MegatronFlag kFlags[] = {
    // Precision.
    {"bf16", kTranslated, 0, "bf16 weights with FP32 masters", "--precision.amp O2 --precision.dtype bf16"},
    {"fp16", kTranslated, 0, "fp16 weights with FP32 masters, Megatron's loss scaling",
     "--precision.amp O2 --precision.dtype fp16 --precision.loss_scale_profile megatron"},
    {"fp8-format", kTranslated, 1},
    {"fp8-amax-history-len", kAlways, 1, "delayed scaling keeps the amax of 1024 steps", "1024"},
    {"fp8-amax-compute-algo", kAlways, 1, "scales come from the largest amax of the history", "max"},
    {"fp8-param-gather", kNoEffect, 0, "weights are gathered in 16 bits and quantized on every rank"},
    {"grad-reduce-in-bf16", kTranslated, 0, "gradients are reduced in bf16", "--precision.reduce_dtype bf16"},
    {"accumulate-allreduce-grads-in-fp32", kAlways, 0, "gradients are accumulated in FP32"},
    {"attention-softmax-in-fp32", kAlways, 0, "softmax is FP32"},
    {"no-query-key-layer-scaling", kAlways, 0, "there is none"},
    {"apply-query-key-layer-scaling", kRefused, 0, "scores are not scaled by layer; leave it out"},
    // Model.
    {"max-position-embeddings", kTranslated, 1},
    {"make-vocab-size-divisible-by", kNoEffect, 1, "the vocabulary is padded internally for tensor parallelism"},
    {"padded-vocab-size", kNoEffect, 1, "the vocabulary is padded internally for tensor parallelism"},
    {"position-embedding-type", kTranslated, 1},
    {"no-position-embedding", kTranslated, 0},
    {"use-rotary-position-embeddings", kTranslated, 0, "rotary position embeddings", "--model.position rotary"},
    {"rotary-base", kTranslated, 1, "", "--model.rope_theta"},
    {"rotary-percent", kAlways, 1, "all channels of a head are rotated", "1.0|1"},
    {"rotary-interleaved", kRefused, 0, "the two halves of a head are rotated, as in Hugging Face's models"},
    {"rotary-seq-len-interpolation-factor", kTranslated, 1, "linear scaling",
     "--model.rope_scaling linear --model.rope_factor"},
    {"use-rope-scaling", kTranslated, 0},
    {"rope-scaling-factor", kTranslated, 1, "", "--model.rope_factor"},
    {"no-rope-fusion", kNoEffect, 0, kFused},
    {"normalization", kTranslated, 1},
    {"norm-epsilon", kTranslated, 1, "", "--model.norm_eps"},
    {"layernorm-epsilon", kTranslated, 1, "", "--model.norm_eps"},
    {"apply-layernorm-1p", kTranslated, 0},
    {"qk-layernorm", kTranslated, 0},
    {"group-query-attention", kNoEffect, 0, "--num-query-groups determines it"},
    {"kv-channels", kTranslated, 1, "", "--model.head_dim"},
    {"window-size", kTranslated, 1},
    {"swiglu", kTranslated, 0},
    {"squared-relu", kTranslated, 0, "MLP with squared ReLU", "--model.activation relu2"},
    {"disable-bias-linear", kTranslated, 0},
    {"add-qkv-bias", kTranslated, 0, "", "--model.qkv_bias true"},
    {"num-experts", kRefused, 1, kNoBlock},
    {"multi-latent-attention", kRefused, 0, kNoBlock},
    // Layout.
    {"num-layers-per-virtual-pipeline-stage", kTranslated, 1},
    {"num-virtual-stages-per-pipeline-rank", kTranslated, 1, "interleaved 1F1B",
     "--parallel.schedule interleaved --parallel.vpp"},
    {"data-parallel-sharding-strategy", kTranslated, 1},
    {"overlap-param-gather", kNoEffect, 0,
     "ZeRO 3 gathers ahead (zero.prefetch); below it parameters are gathered once a step"},
    {"no-async-tensor-model-parallel-allreduce", kNoEffect, 0, kFused},
    {"tp-comm-overlap", kNoEffect, 0, kFused},
    {"distributed-backend", kNoEffect, 1, "comm.backend selects the transport between GPUs; CPUs use MPI"},
    {"distributed-timeout-minutes", kTranslated, 1},
    {"recompute-activations", kTranslated, 0, "selective recomputation", "--parallel.recompute selective"},
    {"recompute-method", kTranslated, 1},
    // Training.
    {"optimizer", kTranslated, 1},
    {"adam-beta1", kTranslated, 1},
    {"adam-beta2", kTranslated, 1},
    {"sgd-momentum", kTranslated, 1, "", "--optim.momentum"},
    {"decoupled-lr", kRefused, 1, kGroups},
    {"decoupled-min-lr", kRefused, 1, kGroups},
    {"muon-momentum", kTranslated, 1, "", "--optim.momentum"},
    {"muon-nesterov", kTranslated, 0, "", "--optim.nesterov true"},
    {"muon-use-nesterov", kTranslated, 0, "", "--optim.nesterov true"},
    {"muon-num-ns-steps", kTranslated, 1, "", "--optim.muon_iterations"},
    {"muon-coefficient-type", kTranslated, 1},
    {"muon-fp32-matmul-prec", kTranslated, 1},
    {"muon-scale-mode", kTranslated, 1},
    {"muon-extra-scale-factor", kTranslated, 1},
    {"muon-tp-mode", kAlways, 1, "whole matrices are orthogonalized, on every layout", "duplicated|distributed"},
    {"muon-scalar-optimizer", kAlways, 1, "AdamW updates all other parameters", "adam"},
    {"muon-no-split-qkv", kRefused, 0, "Q, K and V are orthogonalized separately; leave it out"},
    {"muon-use-syrk", kNoEffect, 0, kFused},
    {"lr-decay-iters", kTranslated, 1, "length of the curve", "--schedule.total_steps"},
    {"lr-decay-style", kTranslated, 1},
    {"lr-warmup-fraction", kTranslated, 1},
    {"lr-warmup-init", kTranslated, 1, "", "--schedule.start_lr"},
    {"lr-wsd-decay-iters", kTranslated, 1, "", "--schedule.decay_steps"},
    {"lr-wsd-decay-style", kTranslated, 1, "", "--schedule.decay_shape"},
    {"train-samples", kTranslated, 1},
    {"lr-decay-samples", kTranslated, 1},
    {"lr-warmup-samples", kTranslated, 1},
    {"calculate-per-token-loss", kAlways, 0, "the loss is the mean over all targets of the global batch"},
    {"weight-decay-incr-style", kAlways, 1, "weight decay is constant", "constant"},
    {"start-weight-decay", kRefused, 1, "weight decay is constant; give --weight-decay"},
    {"end-weight-decay", kRefused, 1, "weight decay is constant; give --weight-decay"},
    {"rampup-batch-size", kRefused, 3,
     "the batch does not grow within a run; leave it out, or train in parts that resume with "
     "another --global-batch-size"},
    {"exit-interval", kRefused, 1, "a run ends at train.steps, or saves and ends by SIGTERM or SIGUSR1"},
    {"exit-duration-in-mins", kRefused, 1, "a run ends at train.steps, or saves and ends by SIGTERM or SIGUSR1"},
    {"exit-signal-handler", kAlways, 0, "SIGTERM, SIGINT and SIGUSR1 save and end the run"},
    {"deterministic-mode", kAlways, 0, "runs are bitwise reproducible"},
    {"override-opt_param-scheduler", kTranslated, 0, "", "--checkpoint.allow_change schedule optim.lr"},
    {"use-checkpoint-opt_param-scheduler", kRefused, 0,
     "the schedule comes from the command line; resume with the same flags"},
    // Data.
    {"mock-data", kTranslated, 0, "", "--data.train mock"},
    {"eod-mask-loss", kTranslated, 0, "", "--data.eod_mask_loss true"},
    {"reset-position-ids", kRefused, 0, "use --data.pack documents: positions and attention stay in each document"},
    {"reset-attention-mask", kRefused, 0, "use --data.pack documents: positions and attention stay in each document"},
    {"vocab-file", kNoEffect, 1, kFiles},
    {"merge-file", kNoEffect, 1, kFiles},
    {"tokenizer-type", kNoEffect, 1, kFiles},
    {"data-impl", kAlways, 1, "token files are memory-mapped", "mmap"},
    {"tiktoken-pattern", kNoEffect, 1, kFiles},
    {"no-mmap-bin-files", kNoEffect, 0, "token files are memory-mapped, whatever reads them elsewhere"},
    {"data-cache-path", kNoEffect, 1, "the order of samples is computed, not stored"},
    {"dataloader-type", kAlways, 1, "samples come in the order of data.order", "single"},
    {"num-workers", kNoEffect, 1, "one thread reads ahead"},
    {"no-create-attention-mask-in-dataloader", kAlways, 0, "no mask is created"},
    // Checkpoints.
    {"save", kTranslated, 1},
    {"load", kTranslated, 1},
    {"ckpt-format", kNoEffect, 1, "checkpoints belong to the model, not to the layout (HDF5)"},
    {"use-dist-ckpt", kNoEffect, 0, "checkpoints belong to the model, not to the layout (HDF5)"},
    {"dist-ckpt-format", kNoEffect, 1, "checkpoints belong to the model, not to the layout (HDF5)"},
    {"no-save-optim", kRefused, 0, "checkpoints hold the optimizer; gpttrain export writes weights alone"},
    {"no-save-rng", kAlways, 0, "randomness is a function of seed and step"},
    {"no-load-rng", kAlways, 0, "randomness is a function of seed and step"},
    {"no-load-optim", kTranslated, 0, "", "--checkpoint.load weights"},
    // Kernels and logs.
    {"use-flash-attn", kAlways, 0,
     "attention never stores its scores; device.attention selects the GPU implementation"},
    {"attention-backend", kNoEffect, 1, "device.attention selects the GPU implementation"},
    {"transformer-impl", kNoEffect, 1, kFused},
    {"use-mcore-models", kNoEffect, 0, kFused},
    {"use-legacy-models", kNoEffect, 0, kFused},
    {"cross-entropy-loss-fusion", kNoEffect, 0, kFused},
    {"no-masked-softmax-fusion", kNoEffect, 0, kFused},
    {"no-bias-gelu-fusion", kNoEffect, 0, kFused},
    {"no-bias-dropout-fusion", kNoEffect, 0, kFused},
    {"no-gradient-accumulation-fusion", kNoEffect, 0, kFused},
    {"no-persist-layer-norm", kNoEffect, 0, kFused},
    {"use-cpu-initialization", kNoEffect, 0, "weights are a function of seed and name, whatever the device"},
    {"empty-unused-memory-level", kNoEffect, 1, "memory is allocated once"},
    {"manual-gc", kNoEffect, 0, "there is no garbage collector"},
    {"manual-gc-interval", kNoEffect, 1, "there is no garbage collector"},
    {"tensorboard-dir", kTranslated, 1},
    {"tensorboard-queue-size", kNoEffect, 1, kLogs},
    {"tensorboard-log-interval", kNoEffect, 1, "log.every applies to every log"},
    {"log-throughput", kAlways, 0, "tokens per second are in every line"},
    {"log-params-norm", kNoEffect, 0, kLogs},
    {"log-num-zeros-in-grad", kNoEffect, 0, kLogs},
    {"log-timers-to-tensorboard", kNoEffect, 0, kTimers},
    {"log-memory-to-tensorboard", kNoEffect, 0, kTimers},
    {"log-batch-size-to-tensorboard", kNoEffect, 0, kTimers},
    {"log-world-size-to-tensorboard", kNoEffect, 0, kTimers},
    {"log-validation-ppl-to-tensorboard", kNoEffect, 0, kTimers},
    {"log-progress", kNoEffect, 0, kLogs},
    {"timing-log-level", kNoEffect, 1, kTimers},
    {"timing-log-option", kNoEffect, 1, kTimers},
    {"profile", kNoEffect, 0, kTrace},
    {"profile-step-start", kNoEffect, 1, kTrace},
    {"profile-step-end", kNoEffect, 1, kTrace},
    {"wandb-project", kNoEffect, 1, kLogs},
    {"wandb-exp-name", kNoEffect, 1, kLogs},
    {"wandb-save-dir", kNoEffect, 1, kLogs},
};

// Megatron's defaults that differ from ours, except layout, paths and logging.
constexpr struct {
  const char *flag, *there, *key, *here;
} kDefaults[] = {
    {"hidden-dropout", "0.1", "model.dropout", "0"},         {"attention-dropout", "0.1", "model.attn_dropout", "0"},
    {"weight-decay", "0.01", "optim.weight_decay", "0.1"},   {"adam-beta2", "0.999", "optim.betas", "0.9,0.95"},
    {"lr-decay-style", "linear", "schedule.type", "cosine"},
};

struct Given {
  const MegatronFlag* flag;
  std::vector<std::string> values;
};

const MegatronFlag* find(std::string_view name) {
  for (const MegatronFlag& f : kFlags)
    if (f.name == name) return &f;
  return nullptr;
}

std::vector<std::string> split(std::string_view text, char by) {
  std::vector<std::string> out;
  for (size_t i = 0; i < text.size();) {
    const size_t end = std::min(text.find(by, i), text.size());
    out.emplace_back(text.substr(i, end - i));
    i = end + 1;
  }
  return out;
}

// Translation of one command line: removed flags and their replacements.
class Translation {
 public:
  Translation(std::vector<std::string>& words, std::span<const std::string> own, Problems& problems)
      : words_(words), problems_(problems) {
    take(own);
  }

  MegatronReport run() {
    for (const Given& g : given_) one(g);
    name_defaults();
    words_.insert(words_.end(), added_.begin(), added_.end());
    return {std::move(report_), std::move(spelled_)};
  }

 private:
  // Consumes the flags of the table, except for `own`. Arguments are the words up to the next flag, at most as many as
  // the flag takes.
  void take(std::span<const std::string> own) {
    std::vector<std::string> rest;
    for (size_t i = 0; i < words_.size(); ++i) {
      const size_t eq = words_[i].find('=');
      const bool dashes = words_[i].rfind("--", 0) == 0;
      const MegatronFlag* flag = dashes ? find(std::string_view(words_[i]).substr(2, eq - 2)) : nullptr;
      if (flag == nullptr || std::find(own.begin(), own.end(), flag->name) != own.end()) {
        rest.push_back(words_[i]);
        continue;
      }
      Given g{flag, {}};
      if (eq != std::string::npos) g.values.push_back(words_[i].substr(eq + 1));
      while (static_cast<int>(g.values.size()) < flag->values && i + 1 < words_.size() &&
             words_[i + 1].rfind("--", 0) != 0)
        g.values.push_back(words_[++i]);
      if (static_cast<int>(g.values.size()) != flag->values)
        problems_.add(
            name_of(g), "",
            fmt::format("expected {} value{}, found {}", flag->values, flag->values == 1 ? "" : "s", g.values.size()));
      else
        given_.push_back(std::move(g));
    }
    words_ = std::move(rest);
  }

  static std::string name_of(const Given& g) { return fmt::format("--{}", g.flag->name); }

  void refuse(const Given& g, const std::string& why, const std::string& fix = "") {
    problems_.add(name_of(g), "", why, fix);
  }

  void report(const Given& g, std::string_view what) {
    report_.push_back(
        fmt::format("megatron: {}{}{}: {}", name_of(g), g.values.empty() ? "" : " ", fmt::join(g.values, " "), what));
  }

  // Appends the translation of a flag and a report line.
  void becomes(const Given& g, const std::vector<std::string>& ours, std::string_view why = {}) {
    added_.insert(added_.end(), ours.begin(), ours.end());
    for (const std::string& word : ours)
      if (word.starts_with("--")) spelled_[word] = name_of(g);
    report(g, fmt::format("{}{}{}", fmt::join(ours, " "), why.empty() ? "" : ", ", why));
  }

  // Returns the value of a flag on this command line, from the table or an alias; "" if absent.
  std::string value(std::string_view name) const {
    for (auto it = given_.rbegin(); it != given_.rend(); ++it)
      if (it->flag->name == name && !it->values.empty()) return it->values[0];
    const std::string flag = fmt::format("--{}", name);
    for (size_t i = words_.size(); i-- > 0;) {
      if (words_[i] == flag && i + 1 < words_.size()) return words_[i + 1];
      if (words_[i].rfind(flag + "=", 0) == 0) return words_[i].substr(flag.size() + 1);
    }
    return "";
  }

  std::optional<int64_t> number(std::string_view name) const {
    int64_t n = 0;
    return parse_int(value(name), n) && n > 0 ? std::optional(n) : std::nullopt;
  }

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
              std::initializer_list<std::pair<std::string_view, std::string_view>> words) {
    std::string list;
    for (const auto& [theirs, ours] : words) {
      if (g.values[0] == theirs) return becomes(g, {flag, std::string(ours)});
      list += fmt::format("{}{}", list.empty() ? "" : ", ", theirs);
    }
    refuse(g, fmt::format("{} is refused: expected one of {}", g.values[0], list));
  }

  void by_rule(const Given& g) {
    const std::string_view name = g.flag->name;
    if (name == "optimizer") return optimizer(g);
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
    if (name == "fp8-format") return choice(g, "--precision.fp8", {{"hybrid", "delayed"}});
    if (name == "adam-beta1" || name == "adam-beta2") return betas(g);
    if (name == "max-position-embeddings") return positions(g);
    if (name == "position-embedding-type")
      return choice(g, "--model.position", {{"learned_absolute", "learned"}, {"rope", "rotary"}});
    if (name == "normalization")
      return choice(g, "--model.norm", {{"LayerNorm", "layer_norm"}, {"RMSNorm", "rms_norm"}});
    if (name == "no-position-embedding") return no_positions(g);
    if (name == "use-rope-scaling") return rope_scaling(g);
    if (name == "apply-layernorm-1p") return zero_centered(g);
    if (name == "qk-layernorm") return qk_norm(g);
    if (name == "window-size") return window(g);
    if (name == "swiglu") return swiglu(g);
    if (name == "disable-bias-linear") return no_biases(g);
    if (name == "lr-decay-samples") return as_steps(g, "--schedule.total_steps");
    if (name == "lr-warmup-samples") return as_steps(g, "--schedule.warmup_steps");
    if (name == "num-layers-per-virtual-pipeline-stage") return virtual_stages(g);
    if (name == "lr-warmup-fraction") return warmup(g);
    if (name == "train-samples") return samples(g);
    if (name == "recompute-method") return recompute(g);
    if (name == "distributed-timeout-minutes") return timeout(g);
    if (name == "save") return becomes(g, {"--checkpoint.dir", g.values[0]});
    if (name == "load") return load(g);
    if (name == "tensorboard-dir")
      return becomes(g, {"--log.tensorboard", "true"}, "event files are in the run's folder, log.dir/log.name");
    GT_CHECK(false, "no rule for --", name);
  }

  bool muon() const { return value("optimizer") == "muon" || value("optimizer") == "dist_muon"; }

  void optimizer(const Given& g) {  // Megatron's adam uses decoupled weight decay
    if (muon()) return muon(g);
    choice(
        g, "--optim.type",
        {{"adam", "adamw"}, {"adamw", "adamw"}, {"sgd", "sgd"}, {"lion", "lion"}, {"lamb", "lamb"}, {"muon", "muon"}});
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

  bool given(std::string_view name) const {
    return std::any_of(given_.begin(), given_.end(), [&](const Given& g) { return g.flag->name == name; });
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

  void load(const Given& g) {
    if (g.values[0] == value("save")) return report(g, "always the case: a run resumes from its own checkpoints");
    becomes(g, {"--checkpoint.load_from", g.values[0]});
  }

  // Applies only if several Megatron-specific spellings are present.
  void name_defaults() {
    constexpr std::string_view kSigns[] = {"num-layers",       "hidden-size",       "num-attention-heads",
                                           "micro-batch-size", "global-batch-size", "train-iters"};
    const auto signs =
        std::count_if(std::begin(kSigns), std::end(kSigns), [&](std::string_view s) { return !value(s).empty(); });
    std::string list;
    for (const auto& d : kDefaults)
      if (value(d.flag).empty() && value(d.key).empty())
        list += fmt::format("{}--{} {} (here {})", list.empty() ? "" : ", ", d.flag, d.there, d.here);
    if (signs >= 4 && !list.empty())
      report_.push_back(
          fmt::format("megatron: unset flags whose default differs: {}; set them to train identically", list));
  }

  std::vector<std::string>& words_;
  Problems& problems_;
  std::vector<Given> given_;
  std::vector<std::string> added_, report_;
  std::map<std::string, std::string> spelled_;
};

}  // namespace

std::span<const MegatronFlag> megatron_flags() { return kFlags; }

std::vector<std::string> megatron_flag_names() {
  std::vector<std::string> out;
  for (const MegatronFlag& f : kFlags) out.emplace_back(f.name);
  return out;
}

std::string megatron_help() {
  std::string translated, other;
  for (const MegatronFlag& f : kFlags)
    if (f.status != kRefused) (f.status == kTranslated ? translated : other) += fmt::format(" --{}", f.name);
  return "\nMegatron-LM flags, reported at the start:\n  translated\n" + help_words(translated.substr(1), 4) +
         "  always the case, or without effect\n" + help_words(other.substr(1), 4);
}

MegatronReport consume_megatron_flags(std::vector<std::string>& words, std::span<const std::string> own,
                                      Problems& problems) {
  return Translation(words, own, problems).run();
}

}  // namespace gt
