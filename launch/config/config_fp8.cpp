#include "launch/config/config_fp8.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/model_spec.h"

namespace gt {
namespace {

constexpr const char* kFp8 = "precision.fp8";

// Dimension of a GEMM of a block's linear layers on one TP rank.
struct Extent {
  std::string name;
  int64_t size;
};

std::vector<Extent> extents_of(const Config& c) {
  std::vector<Extent> out;
  for (const ParamSpec& p : describe(c.model).params) {
    if (p.role != Role::kMatrix || p.layer != 1) continue;
    const Shape here = local_shape(p, RankCoordinates({.size = static_cast<int>(c.parallel.tp)}));
    const std::string module = leaf_class(p.name.substr(0, p.name.rfind('.')));
    for (const int d : {0, 1})
      if (here[d] > 0)  // otherwise tp cannot shard it, which is reported elsewhere
        out.push_back({fmt::format("{} {} of {} on a rank", here[d], d == 0 ? "rows" : "columns", module), here[d]});
  }
  return out;
}

void check_extents(const Config& c, const RuleContext& x) {
  constexpr const char* kWhy = "FP8 GEMMs need dimensions divisible by 16";
  if (c.model.heads <= 0 || c.parallel.tp <= 0) return;  // reported elsewhere
  for (const Extent& e : extents_of(c))
    if (e.size % 16 != 0)
      return x.bad(kFp8, fmt::format("{} with {}: {}", name_of(c.precision.fp8), e.name, kWhy),
                   "change the model's widths or parallel.tp so that they are multiples of 16, or use fp8 off");
  const Curriculum& curriculum = c.data.curriculum;
  const std::vector<int64_t> lengths = curriculum ? curriculum.all_lengths() : std::vector<int64_t>{c.model.seq};
  for (const int64_t length : lengths)
    if (c.train.micro_batch * length % 16 != 0)
      return x.bad(kFp8,
                   fmt::format("{} with {} tokens a microbatch: {}", name_of(c.precision.fp8),
                               c.train.micro_batch * length, kWhy),
                   "choose train.micro_batch or the length so that it is a multiple of 16, or use fp8 off");
}

}  // namespace

void check_fp8(const Config& c, const RuleContext& x) {
  const PrecisionConfig& p = c.precision;
  if (!x.known(kFp8)) return;
  if (p.fp8 == Fp8Recipe::kOff) {
    if (p.fp8_skip_ends) x.notes.push_back("precision.fp8_skip_ends has no effect with precision.fp8 off");
    if (!p.fp8_fast_accum) x.notes.push_back("precision.fp8_fast_accum has no effect with precision.fp8 off");
    return;
  }
  if (p.amp != AmpLevel::kO2)
    return x.bad(kFp8,
                 fmt::format("{} needs precision.amp O2 (16-bit weights with FP32 master weights), found {}",
                             name_of(p.fp8), name_of(p.amp)),
                 "use precision.amp O2, or fp8 off");
  if (p.master_weights == AutoBool::kFalse)
    return x.bad(kFp8,
                 fmt::format("{} needs FP32 master weights, but precision.master_weights is false", name_of(p.fp8)),
                 "leave master_weights out, or use fp8 off");
  if (p.qat != Qat::kOff)
    return x.bad(kFp8,
                 fmt::format("{} with precision.qat {}: a linear layer has one quantized format only", name_of(p.fp8),
                             name_of(p.qat)),
                 "use one of the two");
  check_extents(c, x);
  if (c.model.hidden < 2048)
    x.notes.push_back(fmt::format(
        "warning: precision.fp8 {} with model.hidden {}: below 2048 quantization takes longer than FP8 GEMMs save",
        name_of(p.fp8), c.model.hidden));
  if (p.fp8_skip_ends && c.model.layers <= 2)
    x.notes.push_back("precision.fp8_skip_ends leaves no block in FP8: the model has two or fewer");
}

}  // namespace gt
