// ZeRO, offload, pipeline, tensor parallelism and activation recomputation of a DeepSpeed file.
#include <fmt/format.h>

#include <algorithm>

#include "launch/tools/translate/deepspeed_translation.h"

namespace gt {
namespace {

constexpr const char* kPrefetch = "zero_optimization.stage3_prefetch_bucket_size";

void bucket(DsTranslation& t) {
  const char *reduce = "zero_optimization.reduce_bucket_size", *gather = "zero_optimization.allgather_bucket_size";
  for (const char* key : {reduce, gather})
    if (t.is_auto(key)) t.report(key, "the native value of zero.bucket_bytes");
  const char* one = t.given(reduce) ? reduce : gather;
  if (!t.given(one)) return;
  constexpr int64_t kMost = int64_t{1} << 50;
  const int64_t elements = t.integer(one, 0);
  if (elements > kMost) return t.refuse(one, fmt::format("{} is more than {}", elements, kMost));
  t.set(one, "zero.bucket_bytes", fmt::format("{}", std::max<int64_t>(1, elements * 4)),
        elements == 0 ? "a bucket of each unit; results never depend on it"
                      : "4 bytes an element; results never depend on it");
  if (one == reduce && t.given(gather)) t.report(gather, "no effect: reduce_bucket_size serves both");
}

// `old`: the deprecated boolean key for offload.
void offload(DsTranslation& t, const std::string& block, const std::string& old, const char* native, int64_t stage) {
  const std::string device = block + ".device";
  std::string where = t.text(device, "none"), by = device;
  if (t.flag(old, false)) where = "cpu", by = old;
  if (where == "nvme")
    return t.refuse(device, "nvme is refused: offload to disks is not built yet in this version", "use cpu or none");
  if (where == "none") return;
  if (stage == 0) return t.report(by, "no effect at ZeRO stage 0");
  t.set(by, "zero.offload", native, "no effect without an accelerator: it is host memory already");
}

void bare_zero(DsTranslation& t) {
  const DsValue* v = t.given("zero_optimization");
  if (!v || v->value.kind != JsonValue::Kind::kBool) return;
  t.set("zero_optimization", "zero.stage", v->value.boolean ? "1" : "0", "true is stage 1, false is stage 0");
}

}  // namespace

void translate_zero(DsTranslation& t) {
  bare_zero(t);
  // A block without a stage means stage 0; without a block, the native config is kept.
  const bool bare = t.has("zero_optimization") && t.given("zero_optimization")->value.kind == JsonValue::Kind::kBool;
  if (!bare && t.has("zero_optimization") && !t.has("zero_optimization.stage"))
    t.set("zero_optimization.stage", "zero.stage", "0", "DeepSpeed's default");
  bucket(t);
  if (t.is_auto(kPrefetch)) t.report(kPrefetch, "the native value of zero.prefetch");
  if (t.given(kPrefetch)) {
    t.out.prefetch_numel = t.integer(kPrefetch, 0);
    t.out.prefetch_origin = t.where(kPrefetch) + ": " + kPrefetch + " ->";
  }
  const int64_t stage = t.integer("zero_optimization.stage", bare && t.given("zero_optimization")->value.boolean);
  offload(t, "zero_optimization.offload_optimizer", "zero_optimization.cpu_offload", "optimizer", stage);
  offload(t, "zero_optimization.offload_param", "zero_optimization.cpu_offload_param", "parameters", stage);
  if (t.text("gradient_allreduce_op", "mean") == "sum" && stage == 3)
    t.refuse("gradient_allreduce_op", "sum is not allowed with ZeRO stage 3", "use mean, or stage 0 to 2");
}

void translate_layout(DsTranslation& t) {
  const char* tp = "tensor_parallel.autotp_size";
  if (t.integer(tp, 0) > 0)
    t.set(tp, "parallel.tp", t.text(tp, ""));
  else if (t.given(tp))
    t.report(tp, "off");
  const char *n = "activation_checkpointing.number_checkpoints", *k = "pipeline.activation_checkpoint_interval";
  if (t.given(n))
    t.set(n, "parallel.recompute", "full", "every block stores its input and is recomputed");
  else if (t.integer(k, 0) > 0)
    t.set(k, "parallel.recompute", "full", "every block stores its input and is recomputed");
  if (t.given(k) && t.integer(k, 0) == 0) t.report(k, "off");
  if (t.given(n) && t.integer(k, 0) > 0) t.report(k, "no effect: number_checkpoints determines it");
}

}  // namespace gt
