#include "launch/observe/data_wait.h"

#include <fmt/format.h>

namespace gt {

std::optional<std::string> DataWaitWatch::step(double wait, double seconds) {
  if (warned_ || ignored_++ < kIgnored) return {};
  wait_ += wait;
  seconds_ += seconds;
  if (++steps_ < kSteps) return {};
  const double share = seconds_ > 0 ? wait_ / seconds_ : 0;
  wait_ = seconds_ = steps_ = 0;
  if (share <= kMost) return {};
  warned_ = true;
  return fmt::format(
      "training waited for data {:.1f} % of the last {} steps: the reader is slower than the step. Put the token files "
      "on a faster or a local disk, leave a core to the reader (fewer device.threads), or raise train.micro_batch",
      100 * share, kSteps);
}

}  // namespace gt
