#include "launch/train/fault/bad_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "checkpoint/world.h"
#include "parallel/zero/shard_copy.h"

namespace gt {
namespace {

// Returns "gradient of layers.1.mlp.up.weight, element 17, is nan" for the first view with such a value; "" if none
// has.
std::string first_bad_value(const std::vector<ShardView>& views, const char* what, const RankContext& rank) {
  std::vector<float> host;
  for (const ShardView& v : views) {
    if (!v.save) continue;
    host.resize(static_cast<size_t>(v.data.numel()));
    fetch_view(v, host.data(), rank.backend, rank.stream);
    const auto bad = std::find_if(host.begin(), host.end(), [](float x) { return !std::isfinite(x); });
    if (bad == host.end()) continue;
    return fmt::format("{} of {}, element {}, is {}", what, v.name.substr(v.name.find('/') + 1),
                       logical_offset(v, v.begin + (bad - host.begin())), *bad);
  }
  return "";
}

std::string first_bad_loss(const RankContext& rank, const Engine& engine, int64_t first_sample) {
  const auto dp = static_cast<size_t>(rank.mesh.size(Axis::kDp));
  const size_t each = dp * static_cast<size_t>(engine.options().microbatches);
  const ModelSpec& model = engine.spec();
  const std::span<const double> losses = engine.microbatch_losses();
  for (size_t i = 0; i < losses.size(); ++i) {
    if (std::isfinite(losses[i])) continue;
    const size_t at = i % each;
    const LossSum& sum = model.loss_sums[i / each];
    const LossTerm& term = model.losses[static_cast<size_t>(sum.term)];
    std::string name = sum.term == 0 ? "loss" : term.name + " loss";
    if (term.layers.size() > 1) name += " of " + model.layers[static_cast<size_t>(sum.layer)].modules.front();
    const int64_t b = rank.config.train.micro_batch, first = first_sample + static_cast<int64_t>(at) * b;
    return fmt::format("; the {} of microbatch {} of dp rank {} (samples {} to {}) is {}", name, at / dp, at % dp,
                       first, first + b - 1, losses[i]);
  }
  return "";
}

}  // namespace

std::string name_first_bad_op(const RankContext& rank, const std::optional<BadOp>& bad, const StepResult& again,
                              int64_t first_sample) {
  std::string key, text;
  if (bad) {
    const int64_t b = rank.config.train.micro_batch, k = static_cast<int32_t>(bad->where);
    const int64_t first = first_sample + (k * rank.mesh.size(Axis::kDp) + rank.mesh.coord(Axis::kDp)) * b;
    key = fmt::format("{}{:010}{:020}", bad->made_here ? 0 : 1, bad->where == kNoPosition ? 0 : k, bad->time);
    text = fmt::format("; the first op whose result is not finite: {} (rank {}, {}", bad->text, rank.mesh.rank(),
                       rank.mesh.coordinates());
    text += bad->where == kNoPosition ? ")"
                                      : fmt::format(", stage {}, microbatch {}, samples {} to {})", bad->where >> 32, k,
                                                    first, first + b - 1);
  }
  std::string least;
  for (const std::string& one : gather_bytes(rank.mesh.world(), pack({key, text}))) {
    const auto found = unpack(one);
    if (!found[0].empty() && (least.empty() || found[0] < least)) least = found[0], text = found[1];
  }
  if (!least.empty()) return text;
  return std::isfinite(again.loss) && std::isfinite(again.grad_norm) && !again.overflow
             ? "; the same step is finite when repeated: likely a memory or processor fault"
             : "; every op of the step had finite results, so these values appeared afterwards";
}

std::string name_bad_values(const RankContext& rank, const Engine& engine, int64_t first_sample) {
  const std::string loss = first_bad_loss(rank, engine, first_sample);
  const auto gradient = engine.store().first_nonfinite_gradient();
  std::vector<ShardView> views = engine.store().grad_views();
  std::erase_if(views, [&](const ShardView& v) { return !gradient || v.name != "grad/" + gradient->name; });
  std::string own = first_bad_value(views, "gradient", rank);
  if (own.empty() && gradient) own = "gradient of " + gradient->name + ", in this rank's replica";
  const std::vector<std::string> all =
      gather_bytes(rank.mesh.world(), pack({first_bad_value(engine.store().value_views(), "weight", rank), own,
                                            fmt::format("{:020}", gradient ? gradient->position : 0)}));
  for (const size_t kind : {0, 1}) {
    int reporter = -1, ranks = 0;
    std::string position;
    for (int r = 0; r < static_cast<int>(all.size()); ++r) {
      const auto found = unpack(all[static_cast<size_t>(r)]);
      if (found[kind].empty()) continue;
      ++ranks;
      if (reporter < 0 || (kind == 1 && found[2] < position)) reporter = r, position = found[2];
    }
    if (reporter < 0) continue;
    return loss + fmt::format("; {} (rank {}, {}{})", unpack(all[static_cast<size_t>(reporter)])[kind], reporter,
                              rank.mesh.shape().coordinates(reporter),
                              ranks > 1 ? fmt::format("; {} ranks have such values", ranks) : "");
  }
  return loss;
}

}  // namespace gt
