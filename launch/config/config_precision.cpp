#include "launch/config/config_precision.h"

#include <fmt/format.h>

#include "kernels/core/check.h"

namespace gt {
namespace {

constexpr const char* kAmp = "precision.amp";

bool is_flag_name(const std::string& where) { return where.rfind("--", 0) == 0; }

// `key` means nothing beside what `other` says. True: a flag gave the other, a file this one; it gets a note.
bool overruled(const char* key, const char* other, const RuleContext& x) {
  const std::string where = x.where(key);
  if (!is_flag_name(x.where(other)) || where.empty() || is_flag_name(where)) return false;
  x.notes.push_back(fmt::format("{} {} has no effect with {}", where, key, x.where(other)));
  return true;
}

void check_dtype(PrecisionConfig& p, const RuleContext& x) {
  constexpr const char* kKey = "precision.dtype";
  const bool full = p.dtype == "fp32";
  if (p.amp == "O0") {
    if (!full && !overruled(kKey, kAmp, x))
      x.notes.push_back(fmt::format("precision.dtype {} has no effect at precision.amp O0, which is FP32", p.dtype));
    p.dtype = "fp32";
  } else if (full) {
    if (!x.where(kKey).empty() && !overruled(kKey, kAmp, x))
      x.bad(kKey, fmt::format("fp32 with precision.amp {}, which computes in half precision", p.amp),
            "use bf16 or fp16, or precision.amp O0");
    p.dtype = "bf16";
  }
}

void check_weights(PrecisionConfig& p, const RuleContext& x) {
  for (const auto& [key, value] :
       {std::pair{"precision.keep_norm_fp32", &p.keep_norm_fp32}, {"precision.master_weights", &p.master_weights}}) {
    if (*value == "auto" || p.amp == "O2" || p.amp == "O3") continue;
    if (!overruled(key, kAmp, x))
      x.bad(key, fmt::format("{} with precision.amp {}, which keeps every parameter in FP32", *value, p.amp),
            "leave it out, or use precision.amp O2 or O3");
    *value = "auto";
  }
  if (p.amp == "O2" && p.dtype == "bf16" && p.master_weights == "false")
    x.bad("precision.master_weights",
          "false with precision.amp O2 and precision.dtype bf16: its 8 bits of precision lose small updates",
          "leave master_weights out, or use precision.dtype fp16, or precision.amp O3 to see it fail");
}

void check_loss_scale(PrecisionConfig& p, const RuleContext& x) {
  constexpr const char* kKey = "precision.loss_scale";
  if (!x.known(kKey) || p.loss_scale == "none") return;
  double scale = 1;
  if (p.loss_scale != "dynamic" && (!parse_double(p.loss_scale, scale) || !(scale > 0 && scale <= 1e38)))
    return x.bad(kKey, fmt::format("expected none, dynamic or a number above 0, found \"{}\"", p.loss_scale),
                 "for example dynamic, or 1024");
  if (p.dtype == "bf16" && (p.loss_scale == "dynamic" || scale != 1)) {
    if (!overruled(kKey, kAmp, x) && !overruled(kKey, "precision.dtype", x))
      x.bad(kKey, fmt::format("{} with precision.dtype bf16, which has the range of FP32: its scale is 1", p.loss_scale),
            "leave it out, or use precision.dtype fp16");
    p.loss_scale = "none";
  }
}

}  // namespace

void check_precision(Config& c, const RuleContext& x) {
  if (!x.known("precision.amp") || !x.known("precision.dtype")) return;
  check_dtype(c.precision, x);
  check_weights(c.precision, x);
  check_loss_scale(c.precision, x);
}

}  // namespace gt
