#include "autograd/parameter.h"

#include <atomic>

namespace gt {

int64_t fresh_version() {
  static std::atomic<int64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace gt
