#include "launch/train/fault/skip_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "launch/ranks/agree.h"
#include "parallel/comm/host_values.h"

namespace gt {

void SkipWatch::after(const StepResult& r, int64_t step, const Engine& engine) {
  constexpr auto kSize = std::tuple_size_v<decltype(scales_)>;
  scales_[static_cast<size_t>(steps_++) % kSize] = r.loss_scale;
  in_a_row_ = r.overflow ? in_a_row_ + 1 : 0;
  if (in_a_row_ < most_) return;

  const Mesh& mesh = engine.mesh();
  constexpr int64_t kNoPosition = std::numeric_limits<int64_t>::max();
  const auto bad = engine.store().first_nonfinite_gradient();
  const int64_t first = min_over(mesh.world(), bad ? bad->position : kNoPosition);
  const bool here = bad && bad->position == first;
  const int64_t reporter = min_over(mesh.world(), here ? mesh.rank() : first == kNoPosition ? 0 : kNoPosition);
  std::vector<double> last;
  for (int64_t k = std::max<int64_t>(0, steps_ - static_cast<int64_t>(kSize)); k < steps_; ++k)
    last.push_back(scales_[static_cast<size_t>(k) % kSize]);
  agree(mesh.world(), [&] {
    if (mesh.rank() != reporter) return;
    const std::string where =
        bad ? fmt::format("first non-finite gradient in backward order: {} (rank {}: pp {}, dp {}, tp {})", bad->name,
                          mesh.rank(), mesh.coord(Axis::kPp), mesh.coord(Axis::kDp), mesh.coord(Axis::kTp))
            : std::string("every gradient is finite, their norm is not");
    fail(Exit::kNumerical, "step ", step, ": ", in_a_row_, " consecutive steps had non-finite gradients; ", where,
         "; the loss of this step is ", fmt::format("{}", r.loss), std::isfinite(r.loss) ? "" : " (not finite)",
         "; last loss scales ", fmt::format("{:g}", fmt::join(last, " ")),
         ". Nothing was written since the last finite step. Try a lower --optim.lr, bf16 instead of fp16, or check the "
         "data; precision.max_consecutive_skips sets the limit");
  });
}

}  // namespace gt
