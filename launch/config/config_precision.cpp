#include "launch/config/config_precision.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/core/check.h"

namespace gt {
namespace {

constexpr const char* kAmp = "precision.amp";

bool is_flag_name(const std::string& where) { return where.rfind("--", 0) == 0; }

// `key` has no effect given `other`. If a flag set `other` and a file set `key`, adds a note and returns true.
bool overruled(const char* key, const char* other, const RuleContext& x) {
  const std::string where = x.where(key);
  if (!is_flag_name(x.where(other)) || where.empty() || is_flag_name(where)) return false;
  x.notes.push_back(fmt::format("{} {} has no effect with {}", where, key, x.where(other)));
  return true;
}

void check_dtype(PrecisionConfig& p, const RuleContext& x) {
  constexpr const char* kKey = "precision.dtype";
  const bool full = p.dtype == DType::kF32;
  if (p.amp == AmpLevel::kO0) {
    if (!full && !overruled(kKey, kAmp, x))
      x.notes.push_back(
          fmt::format("precision.dtype {} has no effect at precision.amp O0, which is FP32", float_name(p.dtype)));
    p.dtype = DType::kF32;
  } else if (full) {
    if (!x.where(kKey).empty() && !overruled(kKey, kAmp, x))
      x.bad(kKey, fmt::format("fp32 with precision.amp {}, which computes in 16 bits", name_of(p.amp)),
            "use bf16 or fp16, or precision.amp O0");
    p.dtype = DType::kBF16;
  }
}

bool has_masters(const PrecisionConfig& p) { return value_or(p.master_weights, p.amp != AmpLevel::kO3); }

void check_rounding(PrecisionConfig& p, const RuleContext& x) {
  constexpr const char* kKey = "precision.stochastic_rounding";
  if (!p.stochastic_rounding || (p.dtype == DType::kBF16 && p.amp >= AmpLevel::kO2 && !has_masters(p))) return;
  if (!overruled(kKey, kAmp, x) && !overruled(kKey, "precision.dtype", x)) {
    if (p.amp < AmpLevel::kO2)
      x.bad(kKey, fmt::format("true with precision.amp {}, which trains FP32 weights", name_of(p.amp)),
            "leave it out, or use precision.amp O3, or O2 with precision.master_weights false");
    else if (p.dtype != DType::kBF16)
      x.bad(kKey, fmt::format("true with precision.dtype {}: it rounds to bf16", float_name(p.dtype)),
            "leave it out, or use precision.dtype bf16");
    else
      x.bad(kKey,
            fmt::format("true with precision.amp {} and precision.master_weights {}: FP32 master weights already keep "
                        "what rounding loses",
                        name_of(p.amp), name_of(p.master_weights)),
            "leave it out, or use precision.master_weights false");
  }
  p.stochastic_rounding = false;
}

void check_weights(PrecisionConfig& p, const RuleContext& x) {
  for (const auto& [key, value] :
       {std::pair{"precision.keep_norm_fp32", &p.keep_norm_fp32}, {"precision.master_weights", &p.master_weights}}) {
    if (*value == AutoBool::kAuto || p.amp >= AmpLevel::kO2) continue;
    if (!overruled(key, kAmp, x))
      x.bad(
          key,
          fmt::format("{} with precision.amp {}, which keeps every parameter in FP32", name_of(*value), name_of(p.amp)),
          "leave it out, or use precision.amp O2 or O3");
    *value = AutoBool::kAuto;
  }
  if (p.amp == AmpLevel::kO2 && p.dtype == DType::kBF16 && p.master_weights == AutoBool::kFalse &&
      !p.stochastic_rounding)
    x.bad("precision.master_weights",
          "false with precision.amp O2 and precision.dtype bf16: its 8 bits of precision lose small updates",
          "leave master_weights out, or add precision.stochastic_rounding, or use precision.dtype fp16, or "
          "precision.amp O3 to see it fail");
  check_rounding(p, x);
}

void check_qat(const PrecisionConfig& p, const RuleContext& x) {
  if (p.qat != Qat::kOff && p.amp >= AmpLevel::kO2 && !has_masters(p))
    x.bad("precision.qat",
          fmt::format("{} with precision.amp {} and no master weights: the int8 weights themselves would be trained",
                      name_of(p.qat), name_of(p.amp)),
          "use precision.master_weights true, or qat off");
}

void check_loss_scale(PrecisionConfig& p, const RuleContext& x) {
  constexpr const char* kKey = "precision.loss_scale";
  if (!x.known(kKey) || p.loss_scale == "none") return;
  double scale = 1;
  if (p.loss_scale != "dynamic" && (!parse_double(p.loss_scale, scale) || !(scale > 0 && scale <= kMostLossScale)))
    return x.bad(kKey, fmt::format("expected none, dynamic or a number above 0 up to 1e28, found \"{}\"", p.loss_scale),
                 "for example dynamic, or 1024");
  if (p.dtype == DType::kBF16 && (p.loss_scale == "dynamic" || scale != 1)) {
    if (!overruled(kKey, kAmp, x) && !overruled(kKey, "precision.dtype", x))
      x.bad(kKey,
            fmt::format("{} with precision.dtype bf16, which has the range of FP32: its scale is 1", p.loss_scale),
            "leave it out, or use precision.dtype fp16");
    p.loss_scale = "none";
  }
}

void check_scaler(const Config& c, const RuleContext& x) {
  const PrecisionConfig& p = c.precision;
  const LossScaleOptions s = loss_scale_options(c);
  if (s.dynamic) {
    if (s.min > s.max)
      x.bad("precision.loss_scale_max", fmt::format("{:g} is below loss_scale_min {:g}", s.max, s.min), "");
    else if (s.init < s.min || s.init > s.max)
      x.bad("precision.loss_scale_init",
            fmt::format("{:g} is not from {:g} to {:g}, the loss_scale_min and _max", s.init, s.min, s.max), "");
    return;
  }
  PrecisionConfig fresh;
  for (const auto& [key, given] : {std::pair{"loss_scale_profile", p.loss_scale_profile != fresh.loss_scale_profile},
                                   {"loss_scale_init", p.loss_scale_init != 0},
                                   {"loss_scale_window", p.loss_scale_window != 0},
                                   {"loss_scale_delta", p.loss_scale_delta != -1},
                                   {"loss_scale_hysteresis", p.loss_scale_hysteresis != 0},
                                   {"loss_scale_min", p.loss_scale_min != 0},
                                   {"loss_scale_max", p.loss_scale_max != 0},
                                   {"loss_scale_consecutive_hysteresis", p.loss_scale_consecutive_hysteresis}})
    if (given)
      x.notes.push_back(fmt::format("precision.{} has no effect: the loss scale is constant {:g}", key, s.init));
}

// Describes dtypes of weights, gradients and optimizer state and the loss scaling of a level.
std::string holds(const PrecisionConfig& p, bool keep_norm, bool masters, const LossScaleOptions& s) {
  const auto text = [](DType t) { return t == DType::kF32 ? "FP32" : float_name(t); };
  const std::string gradients = text(p.grad_dtype);
  if (p.amp == AmpLevel::kO0)
    return p.grad_dtype == DType::kF32 ? "FP32 compute, master weights, gradients and reductions"
                                       : "FP32 compute and master weights, gradients " + gradients;
  const std::string scale = s.dynamic ? fmt::format("dynamic from {:g}", s.init) : fmt::format("{:g}", s.init);
  if (p.amp == AmpLevel::kO1)
    return fmt::format("FP32 weights and residual stream, GEMMs and attention in {}, gradients {}, loss scale {}",
                       float_name(p.dtype), gradients, scale);
  return fmt::format("{} weights and residual stream, norms {}, {}, gradients {}, loss scale {}", float_name(p.dtype),
                     text(keep_norm ? DType::kF32 : p.dtype),
                     masters                 ? "FP32 masters"
                     : p.stochastic_rounding ? "no masters but stochastic rounding"
                                             : "no masters",
                     gradients, scale);
}

}  // namespace

LossScaleOptions loss_scale_options(const Config& c) {
  const PrecisionConfig& p = c.precision;
  const bool low = p.dtype == DType::kF16 && (p.amp == AmpLevel::kO1 || p.amp == AmpLevel::kO2);
  LossScaleOptions fixed;
  double number = 1;
  if (p.loss_scale != "dynamic" && !(p.loss_scale == "none" && low)) {
    if (p.loss_scale != "none" && parse_double(p.loss_scale, number)) fixed.init = number;
    return fixed;
  }
  LossScaleOptions o = loss_scale_profile(p.loss_scale_profile);
  if (p.loss_scale_init > 0) o.init = p.loss_scale_init;
  if (p.loss_scale_window > 0) o.window = p.loss_scale_window;
  if (p.loss_scale_delta >= 0) o.delta = p.loss_scale_delta;
  if (p.loss_scale_hysteresis > 0) o.hysteresis = p.loss_scale_hysteresis;
  if (p.loss_scale_min > 0) o.min = p.loss_scale_min;
  if (p.loss_scale_max > 0) o.max = std::min(p.loss_scale_max, kMostLossScale);
  o.consecutive = p.loss_scale_consecutive_hysteresis;
  return o;
}

Precision precision_of(const Config& c) {
  const PrecisionConfig& p = c.precision;
  return {.level = static_cast<int>(p.amp),
          .compute_dtype = p.dtype == DType::kF16 ? DType::kF16 : DType::kBF16,
          .keep_norm = value_or(p.keep_norm_fp32, p.amp != AmpLevel::kO3),
          .int8 = p.qat == Qat::kInt8,
          .frozen_int8 = p.frozen_weights == FrozenWeights::kInt8,
          .fp8 = p.fp8,
          .fp8_skip_ends = p.fp8_skip_ends,
          .masters = has_masters(p)};
}

std::string precision_text(const Config& c) {
  const PrecisionConfig& p = c.precision;
  Config plain = c;
  plain.precision.loss_scale = "none";
  plain.precision.stochastic_rounding = false;
  plain.precision.grad_dtype = DType::kF32;
  const bool keep = p.amp == AmpLevel::kO2;
  const std::string level = holds(plain.precision, keep, keep, loss_scale_options(plain));
  std::string now = holds(p, value_or(p.keep_norm_fp32, keep), value_or(p.master_weights, keep), loss_scale_options(c));
  if (p.amp == AmpLevel::kO0 && p.loss_scale != "none") now += fmt::format(", loss scale {}", p.loss_scale);
  if (p.reduce_dtype != DType::kF32) now += fmt::format(", reductions {}", float_name(p.reduce_dtype));
  if (p.tf32) now += ", FP32 GEMMs in TF32";
  if (p.qat != Qat::kOff) now += fmt::format(", weights and inputs of linear layers quantized to {}", name_of(p.qat));
  if (p.fp8 != Fp8Recipe::kOff)
    now += fmt::format(", linear layers of {} in FP8 (E4M3, E5M2) with {} scaling{}",
                       p.fp8_skip_ends ? "inner blocks" : "blocks", name_of(p.fp8),
                       p.fp8_fast_accum ? "" : ", no fast accumulation");
  return fmt::format("{}: {}{}", name_of(p.amp), level, now == level ? "" : "\nwith this run's settings: " + now);
}

void note_gradients(const Config& c, const RuleContext& x) {
  if (c.precision.grad_dtype != DType::kBF16) return;
  const int64_t sums = c.train.grad_accum;
  x.notes.push_back(fmt::format(
      "warning: precision.grad_dtype bf16 halves the memory of gradients and keeps 8 significant bits: {}",
      sums > 1 ? fmt::format("of a sum over the {} microbatches of a step, addends below 1/512 of it are lost", sums)
               : "each is rounded, though with one microbatch a step they are not accumulated"));
}

void check_precision(Config& c, const RuleContext& x) {
  if (!x.known("precision.amp") || !x.known("precision.dtype")) return;
  check_dtype(c.precision, x);
  check_weights(c.precision, x);
  check_qat(c.precision, x);
  check_loss_scale(c.precision, x);
  if (x.known("precision.loss_scale_profile")) check_scaler(c, x);
}

}  // namespace gt
