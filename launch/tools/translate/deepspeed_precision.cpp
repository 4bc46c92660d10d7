// Maps fp16, bf16, amp and torch_autocast of a DeepSpeed file to precision.amp levels and a loss-scaling profile.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "launch/tools/translate/deepspeed_translation.h"

namespace gt {
namespace {

constexpr const char* kNoMaximum = "1e38";

// Sets a loss-scaler key if the file contains it; otherwise the profile's default applies.
void scaler_key(DsTranslation& t, const std::string& path, const char* native) {
  if (t.given(path)) t.set(path, native, shown(t.given(path)->value));
}

void fp16(DsTranslation& t) {
  const double scale = t.number("fp16.loss_scale", 0);
  t.set("fp16.enabled", "precision.amp", "O2",
        scale == 0 ? "dtype fp16, loss-scale profile deepspeed" : "dtype fp16, static loss scale");
  t.quietly("fp16.enabled", "precision.dtype", {"fp16"});
  if (scale != 0) {
    t.set("fp16.loss_scale", "precision.loss_scale", t.text("fp16.loss_scale", ""));
    for (const char* key :
         {"initial_scale_power", "loss_scale_window", "hysteresis", "consecutive_hysteresis", "min_loss_scale"})
      if (t.has(std::string("fp16.") + key))
        t.report(std::string("fp16.") + key, "no effect: fp16.loss_scale makes the scale static");
    return;
  }
  t.quietly("fp16.enabled", "precision.loss_scale", {"dynamic"});
  t.quietly("fp16.enabled", "precision.loss_scale_profile", {"deepspeed"});
  t.quietly("fp16.enabled", "precision.loss_scale_max", {kNoMaximum});
  const int64_t power = t.integer("fp16.initial_scale_power", 16);
  if (t.given("fp16.initial_scale_power"))
    t.set("fp16.initial_scale_power", "precision.loss_scale_init",
          fmt::format("{}", std::ldexp(1.0, static_cast<int>(power))));
  scaler_key(t, "fp16.loss_scale_window", "precision.loss_scale_window");
  scaler_key(t, "fp16.hysteresis", "precision.loss_scale_hysteresis");
  scaler_key(t, "fp16.min_loss_scale", "precision.loss_scale_min");
  scaler_key(t, "fp16.consecutive_hysteresis", "precision.loss_scale_consecutive_hysteresis");
}

void bf16(DsTranslation& t) {
  t.set("bf16.enabled", "precision.amp", "O2", "dtype bf16");
  t.quietly("bf16.enabled", "precision.dtype", {"bf16"});
}

// Parses the spellings that apex accepts: "True", "128.0", true, 128.
std::string loose(const DsTranslation& t, const std::string& path) {
  const DsValue* v = t.given(path);
  if (!v) return "";
  if (v->value.kind == JsonValue::Kind::kBool) return v->value.boolean ? "true" : "false";
  std::string s = v->value.text;
  std::transform(s.begin(), s.end(), s.begin(), [](unsigned char c) { return std::tolower(c); });
  return s;
}

void amp_truth(DsTranslation& t, const std::string& level, const char* name, const char* native) {
  const std::string path = std::string("amp.") + name, value = loose(t, path);
  if (value.empty() || value == "none") return;
  if (value != "true" && value != "false")
    return t.refuse(path, fmt::format("expected true or false, found {}", shown(t.given(path)->value)));
  if (level == "O1")
    return t.refuse(path, "not allowed with opt_level O1",
                    "O1 keeps FP32 parameters, which are the master weights; remove it or use opt_level O2");
  t.set(path, native, value);
}

void amp_loss_scale(DsTranslation& t, const std::string& level) {
  const std::string value = loose(t, "amp.loss_scale");
  double x;
  const bool is_bf16 = t.text("amp.cast_model_type", "").find("bfloat16") != std::string::npos;
  if (value.empty() && is_bf16 && level != "O1") return;  // bf16 has the range of FP32: no scaling needed
  if (value.empty() || value == "dynamic") {
    const bool dynamic = value == "dynamic" || level == "O1" || level == "O2";
    if (!value.empty()) t.set("amp.loss_scale", "precision.loss_scale", "dynamic", "loss-scale profile apex");
    if (!dynamic) return;
    if (value.empty()) t.quietly("amp.enabled", "precision.loss_scale", {"dynamic"});
    t.quietly("amp.enabled", "precision.loss_scale_profile", {"apex"});
    scaler_key(t, "amp.min_loss_scale", "precision.loss_scale_min");
    scaler_key(t, "amp.max_loss_scale", "precision.loss_scale_max");
  } else if (parse_double(value, x) && x > 0) {
    t.set("amp.loss_scale", "precision.loss_scale", json_number(x));
    for (const char* key : {"amp.min_loss_scale", "amp.max_loss_scale"})
      if (t.has(key)) t.report(key, "no effect: the loss scale is static");
  } else {
    t.refuse("amp.loss_scale", fmt::format("expected \"dynamic\" or a number above 0, found {}",
                                           shown(t.given("amp.loss_scale")->value)));
  }
}

void amp_cast(DsTranslation& t, const std::string& level) {
  if (!t.given("amp.cast_model_type")) return;
  std::string type = t.text("amp.cast_model_type", "");
  if (type.rfind("torch.", 0) == 0) type = type.substr(6);
  const bool is_fp16 = type == "float16" || type == "half", is_bf16 = type == "bfloat16";
  if (level == "O1" || level == "O0")
    t.refuse("amp.cast_model_type", fmt::format("not allowed with opt_level {}", level),
             "the parameters stay FP32; remove it or use opt_level O2");
  else if (!is_fp16 && !is_bf16)
    t.refuse("amp.cast_model_type", fmt::format("expected torch.float16 or torch.bfloat16, found \"{}\"", type));
  else
    t.set("amp.cast_model_type", "precision.dtype", is_fp16 ? "fp16" : "bf16");
}

void amp(DsTranslation& t) {
  const std::string level = t.text("amp.opt_level", "O1");
  t.set(t.has("amp.opt_level") ? "amp.opt_level" : "amp.enabled", "precision.amp", level,
        level == "O0" ? "" : "dtype fp16, as in apex");
  if (t.integer("amp.num_losses", 1) > 1)
    t.refuse("amp.num_losses",
             fmt::format("{}: there is one loss and one global scaler", t.integer("amp.num_losses", 1)), "use 1");
  const std::string patch = loose(t, "amp.patch_torch_functions"), implied = level == "O1" ? "true" : "false";
  if (!patch.empty() && patch != implied)
    t.refuse("amp.patch_torch_functions",
             fmt::format("{} does not fit opt_level {}, which implies {}", patch, level, implied), "leave it out");
  if (level == "O0") {  // FP32: no scaling needed
    for (const char* key : {"amp.loss_scale", "amp.keep_batchnorm_fp32", "amp.master_weights"})
      if (t.has(key)) t.report(key, "no effect: opt_level O0 is FP32");
    return amp_cast(t, level);
  }
  t.quietly("amp.enabled", "precision.dtype", {"fp16"});
  amp_cast(t, level);
  amp_truth(t, level, "keep_batchnorm_fp32", "precision.keep_norm_fp32");
  amp_truth(t, level, "master_weights", "precision.master_weights");
  amp_loss_scale(t, level);
}

void autocast(DsTranslation& t) {
  const std::string type = t.text("torch_autocast.dtype", "bfloat16");
  const bool is_bf16 = type[0] == 'b';
  t.set("torch_autocast.enabled", "precision.amp", "O1", is_bf16 ? "dtype bf16" : "dtype fp16");
  t.quietly("torch_autocast.enabled", "precision.dtype", {is_bf16 ? "bf16" : "fp16"});
}

}  // namespace

void translate_precision(DsTranslation& t) {
  constexpr const char* kBlocks[] = {"fp16", "bf16", "amp", "torch_autocast"};
  constexpr void (*kRules[])(DsTranslation&) = {fp16, bf16, amp, autocast};
  std::string on;
  for (size_t i = 0; i < std::size(kBlocks); ++i) {
    const std::string block = kBlocks[i], enabled = block + ".enabled";
    if (t.is_auto(enabled)) t.report(enabled, "the native value of precision.amp");
    if (!t.flag(enabled, false)) {
      if (t.given(enabled)) t.report(enabled, "off");
    } else if (!on.empty()) {
      t.refuse(enabled, fmt::format("{} and {} are both enabled", on, block), "choose one of them");
    } else {
      on = block;
      t.out.has_precision = true;
      kRules[i](t);
    }
  }
  if (t.given("communication_data_type")) {
    std::string type = t.text("communication_data_type", "");
    if (type == "bfp16") type = "bf16";
    t.set("communication_data_type", "precision.reduce_dtype", type);
  }
  if (t.text("data_types.grad_accum_dtype", "") == "fp16")
    t.refuse("data_types.grad_accum_dtype", "fp16 is refused: gradient sums overflow", "use fp32 or bf16");
  else if (t.given("data_types.grad_accum_dtype"))
    t.set("data_types.grad_accum_dtype", "precision.grad_dtype", t.text("data_types.grad_accum_dtype", ""));
}

}  // namespace gt
