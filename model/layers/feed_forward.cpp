#include "model/layers/feed_forward.h"

#include "model/layers/mlp.h"
#include "model/layers/moe.h"

namespace gt {

std::unique_ptr<FeedForward> make_feed_forward(const std::string& name, const Build& b) {
  if (b.config().moe.experts > 0) return std::make_unique<Moe>(name, b);
  return std::make_unique<Mlp>(name, b);
}

}  // namespace gt
