#include "launch/engine/quantizer_states.h"

#include <cmath>

namespace gt {

QuantizerStates::QuantizerStates(std::vector<QuantizerState*> ranges, const Mesh& mesh, const Backend& backend,
                                 Stream stream)
    : ranges_(std::move(ranges)), mesh_(mesh), backend_(backend), stream_(stream) {
  memory_ = Buffer(2 * count() * size_of(DType::kF32), stream.device, *backend.device);
  host_.resize(2 * ranges_.size());
  if (ranges_.empty()) return;
  backend.device->zero(memory_.data(), memory_.bytes(), stream);
  for (int64_t i = 0; i < count(); ++i) {
    QuantizerState& r = *ranges_[static_cast<size_t>(i)];
    r.limit = limits().slice(i, 1);
    r.step_amax = step_amax().slice(i, 1);
  }
}

void QuantizerStates::begin_step() {
  if (!ranges_.empty()) backend_.device->zero(step_amax().data, step_amax().bytes(), stream_);
}

void QuantizerStates::end_step() {
  if (ranges_.empty()) return;
  mesh_.stage().all_reduce(step_amax(), ReduceOp::kMax, stream_).wait(stream_);
  if (stream_.device.kind == DeviceKind::kNull) return;
  backend_.device->copy(host_.data(), memory_.data(), 2 * count() * size_of(DType::kF32), stream_);
  backend_.device->synchronize(stream_);
  const size_t n = ranges_.size();
  for (size_t i = 0; i < n; ++i) {
    const float most = host_[n + i];
    if (!std::isfinite(most)) continue;  // a non-finite activation whose gradients were finite
    if (most == 0) continue;             // a block dropped in this step
    host_[i] = host_[i] == 0 ? most : 0.99f * host_[i] + 0.01f * most;
  }
  backend_.device->copy(memory_.data(), host_.data(), count() * size_of(DType::kF32), stream_);
  backend_.device->synchronize(stream_);
}

void QuantizerStates::append_views(std::vector<ShardView>& out) const {
  const bool save = mesh_.coord(Axis::kDp) == 0;  // on one of the TP ranks: assign_over_tp
  for (const QuantizerState* r : ranges_)
    out.push_back({.name = "qat/limit/" + r->name,
                   .data = r->limit,
                   .full = {1},
                   .local = {1},
                   .shard = {},
                   .at = mesh_.all_coordinates(),
                   .save = save});
}

}  // namespace gt
