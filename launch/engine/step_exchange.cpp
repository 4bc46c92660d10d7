#include "launch/engine/step_exchange.h"

#include <algorithm>
#include <numeric>

#include "kernels/core/step_limits.h"
#include "parallel/proof/claim.h"

namespace gt {

StepExchange::StepExchange(const Sizes& sizes, std::vector<int> own, const Mesh& mesh, const Backend& backend,
                           Stream stream)
    : mesh_(mesh), backend_(backend), stream_(stream), sizes_(sizes), own_(std::move(own)) {
  const int64_t microbatches = int64_t{sizes.microbatches} * mesh.size(Axis::kDp);
  const std::array<int64_t, kNumFields> fields{sizes.units,
                                               1,
                                               sizes.losses * microbatches,
                                               3,
                                               int64_t{mesh.shape().pp} * kNumStageTimes,
                                               sizes.targets ? microbatches : 0};
  std::partial_sum(fields.begin(), fields.end(), first_.begin() + 1);
  sums_ = Buffer(first_.back() * size_of(DType::kF64), stream.device, *backend.device);
  host_ = HostArray<double>(static_cast<size_t>(first_.back()), *backend.device);
  staged_ = HostArray<double>(static_cast<size_t>(first_.back() - begin(Field::kLosses)), *backend.device);
  read_ = backend.device->create_event(stream.device.index);
}

StepExchange::~StepExchange() { backend_.device->destroy_event(read_); }

Tensor StepExchange::on_device(Field first, Field last) const {
  return sums_.tensor({end(last) - begin(first)}, DType::kF64, begin(first) * size_of(DType::kF64));
}

std::span<const double> StepExchange::on_host(Field f) const {
  return std::span<const double>(host_).subspan(static_cast<size_t>(begin(f)), static_cast<size_t>(end(f) - begin(f)));
}

void StepExchange::put(const ControlFlags& flags, const Timers& own, std::span<const double> targets) {
  std::fill_n(staged_.data(), staged_.size(), 0.);
  double* sent = staged(Field::kFlags);
  sent[0] = flags.stop ? 1 : 0;
  sent[1] = flags.save_ready ? 1 : 0;
  sent[2] = flags.save_due ? 1 : 0;
  const double replicas = static_cast<double>(mesh_.shape().world()) / mesh_.shape().pp;
  double* times = staged(Field::kTimes) + ptrdiff_t{mesh_.coord(Axis::kPp)} * kNumStageTimes;
  for (size_t i = 0; i < own.size(); ++i) times[i] = own[i] / replicas;
  const auto dp = static_cast<size_t>(mesh_.size(Axis::kDp)), d = static_cast<size_t>(mesh_.coord(Axis::kDp));
  if (mesh_.last_stage() && mesh_.coord(Axis::kTp) == 0)  // only these ranks hold targets
    for (size_t k = 0; k < targets.size(); ++k) staged(Field::kTargets)[k * dp + d] = targets[k];
  if (stream_.device.kind != DeviceKind::kNull)
    backend_.device->copy(on_device(Field::kLosses).data, staged_.data(), staged_.bytes(), stream_);
}

void StepExchange::all_reduce(Tensor losses) {
  const int64_t dp = mesh_.size(Axis::kDp), d = mesh_.coord(Axis::kDp), m = sizes_.microbatches;
  const Tensor shared = on_device(Field::kLosses);
  for (const int own : own_)
    for (int64_t k = own * m; mesh_.coord(Axis::kTp) == 0 && k < (own + 1) * m; ++k)
      backend_.ops->copy({.src = losses.slice(k, 1), .dst = shared.slice(k * dp + d, 1)}, stream_);
  proof::held_by_one(shared, {Axis::kPp, Axis::kTp});  // as above; each dp coordinate has its own slots
  mesh_.world().all_reduce(on_device(Field::kNormSquares, Field::kTargets), ReduceOp::kSum, stream_).wait(stream_);
}

void StepExchange::fetch() {
  if (stream_.device.kind == DeviceKind::kNull) return;
  backend_.device->copy(host_.data(), sums_.data(), host_.bytes(), stream_);
  backend_.device->record(read_, stream_);
}

void StepExchange::await() {
  if (stream_.device.kind != DeviceKind::kNull) backend_.device->await(read_);
}

double StepExchange::mean_loss(std::span<const double> shares, size_t first, size_t count) const {
  const std::span<const double> losses = on_host(Field::kLosses), targets = on_host(Field::kTargets);
  const auto n = losses.size() / static_cast<size_t>(sizes_.losses);
  return gt::mean_loss(losses.data() + first * n, static_cast<int64_t>(count), static_cast<int64_t>(n),
                       shares.data() + 2 * first, targets.empty() ? nullptr : targets.data());
}

}  // namespace gt
