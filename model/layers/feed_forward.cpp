#include "model/layers/feed_forward.h"

#include "model/layers/mlp.h"

namespace gt {

std::unique_ptr<FeedForward> make_feed_forward(const std::string& name, const Build& b) {
  return std::make_unique<Mlp>(name, b);
}

}  // namespace gt
