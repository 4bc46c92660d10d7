#include "launch/engine/fp8_states.h"

namespace gt {

Fp8States::Fp8States(std::vector<Fp8State*> ranges, const Mesh& mesh, const Backend& backend, Stream stream)
    : ranges_(std::move(ranges)), mesh_(mesh), backend_(backend), stream_(stream) {
  memory_ = Buffer((2 + kSteps) * count() * size_of(DType::kF32), stream.device, *backend.device);
  host_.resize(ranges_.size());
  if (ranges_.empty()) return;
  backend.device->zero(memory_.data(), memory_.bytes(), stream);
  for (int64_t i = 0; i < count(); ++i) {
    Fp8Scaling& scale = ranges_[static_cast<size_t>(i)]->scale;
    scale.step_amax = step_amax().slice(i, 1);
    scale.amax = amax().slice(i, 1);
  }
}

void Fp8States::begin_step() {
  if (!ranges_.empty()) backend_.device->zero(step_amax().data, step_amax().bytes(), stream_);
}

void Fp8States::end_step(int64_t applied) {
  if (ranges_.empty()) return;
  mesh_.stage().all_reduce(step_amax(), ReduceOp::kMax, stream_).wait(stream_);
  backend_.ops->amax_history(
      {.step_amax = step_amax(), .history = history(), .amax = amax(), .at = (applied - 1) % kSteps}, stream_);
  if (!all_have_history_) find_histories();  // a block dropped by layer drop may first run late
}

void Fp8States::adopt() {
  if (ranges_.empty()) return;
  backend_.ops->max_abs({.x = history(), .out = amax()}, stream_);
  find_histories();
}

// Finds the states that have a history. Waits for the device in the first steps only.
void Fp8States::find_histories() {
  if (stream_.device.kind == DeviceKind::kNull) return;
  backend_.device->copy(host_.data(), amax().data, amax().bytes(), stream_);
  backend_.device->synchronize(stream_);
  all_have_history_ = true;
  for (size_t i = 0; i < ranges_.size(); ++i) {
    ranges_[i]->scale.has_history = host_[i] > 0;
    all_have_history_ = all_have_history_ && ranges_[i]->scale.has_history;
  }
}

void Fp8States::append_views(std::vector<ShardView>& out) const {
  const bool save = mesh_.coord(Axis::kDp) == 0;  // on one of the TP ranks: assign_over_tp
  for (int64_t i = 0; i < count(); ++i)
    out.push_back({.name = "fp8/amax/" + ranges_[static_cast<size_t>(i)]->name,
                   .data = history().slice(i, 1).view({kSteps}),
                   .full = {kSteps},
                   .local = {kSteps},
                   .shard = {},
                   .at = mesh_.all_coordinates(),
                   .save = save});
}

}  // namespace gt
