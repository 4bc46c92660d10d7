#include "launch/config/config_moe.h"

#include <fmt/format.h>

#include "launch/options/near_numbers.h"

namespace gt {
namespace {

constexpr const char *kExperts = "model.moe_experts", *kTopK = "model.moe_top_k", *kEp = "parallel.ep";

void check_router(const Config& c, const RuleContext& x) {
  const MoeConfig& moe = c.model.moe;
  if (moe.top_k > moe.experts)
    return x.bad(kTopK, fmt::format("{} experts for each token, but there are {}", moe.top_k, moe.experts),
                 fmt::format("1 to {}", moe.experts));
  if (moe.top_k == 1 && moe.normalize)
    x.bad(kTopK,
          "1 with model.moe_normalize true: the weight of the only expert is constant, so the router gets no gradient "
          "from the loss of tokens",
          "2 or more, or model.moe_normalize false");
}

// Every rank of an expert group has as many experts, and the groups divide the replicas.
void check_axis(const Config& c, const RuleContext& x) {
  const int64_t ep = c.parallel.ep, experts = c.model.moe.experts;
  if (ep == 1 || !x.known(kEp)) return;
  if (experts == 0)
    return x.bad(kEp, fmt::format("{} ranks to split experts over, but the model has none: model.moe_experts is 0", ep),
                 "1, or a number of experts");
  const auto any = [](int64_t) { return true; };
  if (experts % ep)
    x.bad(kEp, fmt::format("{} experts are not divisible by ep {}", experts, ep),
          fmt::format("ep may be {}", list_of(nearest(divisors(experts, any), ep))));
  if (c.parallel.dp % ep && x.known("parallel.dp"))
    x.bad(kEp,
          fmt::format("ep {} does not divide dp {}: experts are split over data-parallel ranks", ep, c.parallel.dp),
          fmt::format("ep may be {}, or dp a multiple of {}",
                      list_of(nearest(divisors(c.parallel.dp, [&](int64_t n) { return experts % n == 0; }), ep)), ep));
}

// What is not built for experts in this version.
void check_built(const Config& c, const RuleContext& x) {
  const auto not_built = [&](bool found, const char* key, const std::string& what, const char* fix) {
    if (found && x.known(key))
      x.bad(key, what + " is not built yet in this version with experts (model.moe_experts)", fix);
  };
  not_built(c.device.kind == DeviceChoice::kCuda, "device.kind", "cuda", "cpu");
  not_built(c.model.mlp_bias, "model.mlp_bias", "true", "false, or model.arch mixtral, qwen3_moe or olmoe");
  not_built(c.model.lora.rank > 0, "model.lora_rank", std::to_string(c.model.lora.rank), "0");
  not_built(c.model.init != WeightInit::kNormal, "model.init", name_of(c.model.init), "normal");
  not_built(c.precision.fp8 != Fp8Recipe::kOff, "precision.fp8", name_of(c.precision.fp8), "off");
  not_built(c.precision.qat != Qat::kOff, "precision.qat", name_of(c.precision.qat), "off");
  not_built(c.optim.type == "lamb", "optim.type", "lamb", "adamw, or another optimizer without norms of tensors");
}

}  // namespace

void check_moe(const Config& c, const RuleContext& x) {
  if (!x.known(kExperts) || !x.known(kTopK)) return;
  check_axis(c, x);
  if (c.model.moe.experts == 0) {
    if (c.model.moe.balance > 0)
      x.bad("model.moe_balance", "there are no experts to balance: model.moe_experts is 0",
            "0, or a number of experts");
    return;
  }
  check_router(c, x);
  check_built(c, x);
}

}  // namespace gt
