#include "launch/config/config_moe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <tuple>

#include "kernels/expert_ops.h"
#include "launch/options/near_numbers.h"

namespace gt {
namespace {

constexpr const char *kExperts = "model.moe_experts", *kTopK = "model.moe_top_k", *kEp = "parallel.ep";

void check_groups(const MoeConfig& moe, const RuleContext& x) {
  const int64_t size = moe.experts / moe.groups;
  if (moe.gate != GateKind::kSigmoid)
    return x.bad("model.moe_groups", fmt::format("{}: groups are chosen by sigmoid scores", moe.groups),
                 "1, or model.moe_gate sigmoid");
  if (moe.experts % moe.groups != 0 || size < 2)
    return x.bad("model.moe_groups", fmt::format("{} groups of {} experts", moe.groups, moe.experts),
                 "a divisor of model.moe_experts, with two experts or more in a group");
  if (moe.top_groups > moe.groups || moe.top_groups * size < moe.top_k)
    x.bad("model.moe_top_groups",
          fmt::format("{} of {} groups of {} experts, for {} experts a token", moe.top_groups, moe.groups, size,
                      moe.top_k),
          fmt::format("{} to {}", (moe.top_k + size - 1) / size, moe.groups));
}

void check_dense_blocks(const Config& c, const RuleContext& x) {
  const std::vector<int64_t>& dense = c.model.moe.dense_blocks;
  const bool ascends = std::adjacent_find(dense.begin(), dense.end(), std::greater_equal<>()) == dense.end();
  if (!ascends || (!dense.empty() && (dense.front() < 0 || dense.back() >= c.model.layers)))
    return x.bad("model.moe_dense_blocks", fmt::format("{}", fmt::join(dense, ",")),
                 fmt::format("ascending numbers 0 to {}", c.model.layers - 1));
  if (static_cast<int64_t>(dense.size()) == c.model.layers)
    x.bad("model.moe_dense_blocks", "no block has experts", "fewer blocks, or model.moe_experts 0");
  if (dense.empty() && c.model.moe.dense_ffn > 0)
    x.bad("model.moe_dense_ffn", fmt::format("{}, but no block has a dense MLP", c.model.moe.dense_ffn),
          "0, or blocks in model.moe_dense_blocks");
}

// Settings without effect where there are no experts.
void check_unused(const MoeConfig& moe, const RuleContext& x) {
  for (const auto& [used, key, what] :
       {std::tuple{moe.balance > 0, "model.moe_balance", "to balance"},
        {moe.bias || moe.bias_rate > 0, moe.bias ? "model.moe_bias" : "model.moe_bias_rate", "to choose"},
        {moe.groups > 1 || moe.top_groups > 1, "model.moe_groups", "in groups"},
        {moe.shared > 0 || moe.shared_gate, moe.shared > 0 ? "model.moe_shared" : "model.moe_shared_gate", "to add to"},
        {!moe.dense_blocks.empty(), "model.moe_dense_blocks", "in other blocks"},
        {moe.dense_ffn > 0, "model.moe_dense_ffn", "in other blocks"}})
    if (used)
      x.bad(key, fmt::format("there are no experts {}: model.moe_experts is 0", what),
            "its default, or a number of experts");
}

void check_router(const Config& c, const RuleContext& x) {
  const MoeConfig& moe = c.model.moe;
  if (moe.top_k > moe.experts)
    return x.bad(kTopK, fmt::format("{} experts for each token, but there are {}", moe.top_k, moe.experts),
                 fmt::format("1 to {}", moe.experts));
  if (moe.groups > 1 || moe.top_groups > 1) check_groups(moe, x);
  if (moe.bias && moe.gate != GateKind::kSigmoid)
    x.bad("model.moe_bias", "true: scores of a softmax have no bias", "false, or model.moe_gate sigmoid");
  if (moe.bias_rate > 0 && !moe.bias)
    x.bad("model.moe_bias_rate", fmt::format("{:g}: there is no bias to move", moe.bias_rate),
          "0, or model.moe_bias true");
  if (moe.shared_gate && moe.shared == 0)
    x.bad("model.moe_shared_gate", "true: there is no shared expert", "false, or model.moe_shared 1 or more");
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
  not_built(c.model.mlp_bias, "model.mlp_bias", "true",
            "false, or model.arch mixtral, qwen3_moe, olmoe, dots1 or qwen2_moe");
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
  if (c.model.moe.experts == 0) return check_unused(c.model.moe, x);
  check_router(c, x);
  if (x.known("model.layers") && x.known("model.moe_dense_blocks")) check_dense_blocks(c, x);
  check_built(c, x);
}

}  // namespace gt
