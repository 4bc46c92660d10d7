#include "launch/tools/translate/megatron_defaults.h"

#include <fmt/format.h>

#include <algorithm>

#include "optim/optimizer_rules.h"

namespace gt {
namespace {

// Groups of lines to which a row belongs.
enum class Where { kAlways, kArchitecture, kAdamLike, kSgd, kWsd, kEvaluation, kMaskedLoss };
using enum Where;

constexpr struct {
  const char *flag, *there, *key;
  const char* words;  // of our key; nullptr: `there`
  Where where;
} kDefaults[] = {
    {"hidden-dropout", "0.1", "model.dropout", nullptr, kAlways},
    {"attention-dropout", "0.1", "model.attn_dropout", nullptr, kAlways},
    {"init-method-std", "0.02", "model.init_std", nullptr, kAlways},
    {"optimizer", "adam", "optim.type", "adamw", kAlways},
    {"adam-beta1, --adam-beta2", "0.9, 0.999", "optim.betas", "0.9,0.999", kAdamLike},
    {"adam-eps", "1e-8", "optim.eps", nullptr, kAdamLike},
    {"sgd-momentum", "0.9", "optim.momentum", nullptr, kSgd},
    {"weight-decay", "0.01", "optim.weight_decay", nullptr, kAlways},
    {"clip-grad", "1.0", "optim.grad_clip", nullptr, kAlways},
    {"lr-decay-style", "linear", "schedule.type", nullptr, kAlways},
    {"lr-wsd-decay-style", "exponential", "schedule.decay_shape", nullptr, kWsd},
    {"min-lr", "0", "schedule.min_lr", nullptr, kAlways},
    {"lr-warmup-init", "0", "schedule.start_lr", nullptr, kAlways},
    {"seed", "1234", "train.seed", nullptr, kAlways},
    {"eval-iters", "100", "train.eval_steps", nullptr, kEvaluation},
    {"calculate-per-token-loss", "off", "train.loss_mean", "microbatch", kMaskedLoss},
    {"split", "969,30,1", "data.split", nullptr, kAlways},
    {"normalization", "LayerNorm", "model.norm", "layer_norm", kArchitecture},
    {"norm-epsilon", "1e-5", "model.norm_eps", nullptr, kArchitecture},
    {"apply-layernorm-1p", "off", "model.norm_zero_centered", "false", kArchitecture},
    {"position-embedding-type", "learned_absolute", "model.position", "learned", kArchitecture},
    {"rotary-base", "10000", "model.rope_theta", nullptr, kArchitecture},
    {"qk-layernorm", "off", "model.qk_norm", "none", kArchitecture},
    {"swiglu", "off", "model.gated", "false", kArchitecture},
    {"disable-bias-linear", "off", "model.qkv_bias", "true", kArchitecture},
    {"disable-bias-linear", "off", "model.out_bias", "true", kArchitecture},
    {"disable-bias-linear", "off", "model.mlp_bias", "true", kArchitecture},
    {"untie-embeddings-and-output-weights", "off", "model.tied", "true", kArchitecture},
    {"window-size", "none", "model.window", "0", kArchitecture},
};

// Whether the --adam-... flags are of an optimizer, named as here or there: those with bias-corrected moments.
bool adam_like(const std::string& name) {
  if (name.empty()) return true;
  for (const OptimizerRule& r : optimizer_rules())
    if (r.name == name || std::find(r.megatron.begin(), r.megatron.end(), name) != r.megatron.end())
      return r.reads("bias_correction");
  return false;
}

bool applies(Where where, const MegatronLine& line) {
  const std::string ours = line.value("optim.type"), optimizer = ours.empty() ? line.value("optimizer") : ours;
  switch (where) {
    case kAlways: return true;
    case kArchitecture: return !line.has("model.arch");  // a family by its name brings its own
    case kAdamLike: return adam_like(optimizer);
    case kSgd: return optimizer == "sgd";
    case kWsd: return line.value("lr-decay-style") == "WSD";
    case kEvaluation: return line.has("eval-interval") && !line.has("eval-iters");
    case kMaskedLoss: return line.has("eod-mask-loss") && !line.has("calculate-per-token-loss");
  }
  return false;
}

// GELU in its tanh form is that of the fused kernel, which adds the bias too.
void add_activation(const MegatronLine& line, std::vector<AbsentSetting>& out) {
  if (line.has("swiglu") || line.has("squared-relu") || line.has("model.arch")) return;
  const bool exact = !line.has("openai-gelu") && (line.has("disable-bias-linear") || line.has("no-bias-gelu-fusion"));
  out.push_back({"model.activation",
                 {exact ? "gelu_erf" : "gelu"},
                 exact ? "GELU without --bias-gelu-fusion is exact" : "--bias-gelu-fusion computes GELU by tanh"});
}

// A curve over --train-iters N without warm-up: Megatron's first step has the peak, its last 1 - (N - 1) / N of the
// curve. Here the rate of step t is that after t steps, so the same curve has a warm-up of one step and N + 1 in all.
void add_curve(const MegatronLine& line, std::vector<AbsentSetting>& out) {
  for (const char* flag :
       {"lr-warmup-iters", "lr-warmup-fraction", "lr-warmup-samples", "lr-decay-iters", "lr-decay-samples",
        "train-samples", "schedule.type", "schedule.warmup_steps", "schedule.total_steps", "schedule.unit"})
    if (line.has(flag)) return;
  const std::string style = line.value("lr-decay-style");
  const auto steps = line.number("train-iters");
  if (!steps || (!style.empty() && style != "linear" && style != "cosine")) return;
  out.push_back({"schedule.warmup_steps", {"1"}, "--lr-warmup-iters 0"});
  out.push_back({"schedule.total_steps", {std::to_string(*steps + 1)}, fmt::format("--lr-decay-iters {}", *steps)});
}

}  // namespace

std::string megatron_family(const MegatronLine& line) {
  const bool rotary = line.value("position-embedding-type") == "rope" || line.has("use-rotary-position-embeddings");
  if (!rotary || line.value("normalization") != "RMSNorm" || !line.has("swiglu") || !line.has("disable-bias-linear"))
    return "gpt2";
  if (line.has("qk-layernorm")) return line.has("add-qkv-bias") ? "gpt2" : "qwen3";
  if (line.has("add-qkv-bias")) return "qwen2";
  return line.has("window-size") ? "mistral" : "llama";
}

std::vector<AbsentSetting> megatron_defaults(const MegatronLine& line) {
  std::vector<AbsentSetting> out;
  if (!line.whole()) return out;
  if (!line.has("model.arch")) out.push_back({"model.arch", {megatron_family(line)}, "the family that its flags name"});
  for (const auto& d : kDefaults)
    if (applies(d.where, line))
      out.push_back({d.key, {d.words ? d.words : d.there}, fmt::format("--{} {}", d.flag, d.there)});
  add_activation(line, out);
  add_curve(line, out);
  return out;
}

}  // namespace gt
