#include "model/layers/feed_forward.h"

#include "model/layers/mlp.h"
#include "model/layers/shared_expert.h"

namespace gt {

std::unique_ptr<FeedForward> make_feed_forward(const std::string& name, const Build& b) {
  if (b.model.find(name + ".router.weight") == nullptr) return std::make_unique<Mlp>(name, b);
  if (b.config().moe.shared == 0) return std::make_unique<Moe>(name, b);
  return std::make_unique<MoeWithShared>(name, b);
}

}  // namespace gt
