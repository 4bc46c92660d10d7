#include "launch/engine/router_biases.h"

#include <numeric>

namespace gt {

RouterBiases::RouterBiases(std::vector<RouterLoad*> loads, double rate, const Mesh& mesh, const Backend& backend,
                           Stream stream)
    : loads_(std::move(loads)), rate_(rate), mesh_(mesh), backend_(backend), stream_(stream) {
  int64_t count = 0;
  for (const RouterLoad* l : loads_) count += l->bias->value.numel();
  memory_ = Buffer(count * size_of(DType::kF64), stream.device, *backend.device);
  counts_ = memory_.tensor({count}, DType::kF64);
  host_counts_.resize(static_cast<size_t>(count));
  int64_t at = 0;
  for (RouterLoad* l : loads_) {
    l->counts = counts_.slice(at, l->bias->value.numel());
    at += l->counts.numel();
  }
}

void RouterBiases::begin_step() {
  if (!loads_.empty()) backend_.device->zero(counts_.data, counts_.bytes(), stream_);
}

void RouterBiases::end_step() {
  if (loads_.empty()) return;
  const Domain domain = mesh_.domain(kDenseDomain);
  if (domain.size > 1) domain.group->all_reduce(counts_, ReduceOp::kSum, stream_).wait(stream_);
  if (stream_.device.kind == DeviceKind::kNull) return;
  backend_.device->copy(host_counts_.data(), counts_.data, counts_.bytes(), stream_);
  const double* counts = host_counts_.data();
  for (const RouterLoad* l : loads_) {
    const Tensor bias = l->bias->value;
    const auto experts = static_cast<size_t>(bias.numel());
    host_bias_.resize(experts);
    backend_.device->copy(host_bias_.data(), bias.data, bias.bytes(), stream_);
    backend_.device->synchronize(stream_);
    const double sum = std::accumulate(counts, counts + experts, 0.);
    for (size_t e = 0; e < experts; ++e) {
      const double less = sum - static_cast<double>(experts) * counts[e];  // than the mean: whole numbers, exact
      host_bias_[e] += static_cast<float>(less > 0 ? rate_ : less < 0 ? -rate_ : 0);
    }
    backend_.device->copy(bias.data, host_bias_.data(), bias.bytes(), stream_);
    backend_.device->synchronize(stream_);
    counts += experts;
  }
}

}  // namespace gt
