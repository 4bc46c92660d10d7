#include "launch/tools/verify/activations.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/backend.h"
#include "kernels/core/rng.h"

namespace gt {
namespace {

constexpr uint64_t kSigns = 0x5EED0F516E5ull;

template <class T>
void project(const T* x, int64_t first, int64_t n, std::array<double, 8>& sums) {
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t bits = splitmix64(kSigns ^ static_cast<uint64_t>(first + i));
    const double v = static_cast<double>(x[i]);
    for (size_t j = 0; j < sums.size(); ++j) sums[j] += (bits >> j & 1) != 0 ? v : -v;
  }
}

double distance(const std::array<double, 8>& a, const std::array<double, 8>& b) {
  double diff = 0, norm = 0;
  for (size_t j = 0; j < a.size(); ++j) {
    diff += (a[j] - b[j]) * (a[j] - b[j]);
    norm += b[j] * b[j];
  }
  const double e = std::sqrt(diff) / std::max(std::sqrt(norm), 1e-30);
  return std::isfinite(e) ? e : std::numeric_limits<double>::infinity();
}

}  // namespace

void ActivationRecorder::activation(const std::string& module, Tensor x, const MicroBatch& mb) {
  const bool is_16bit = x.dtype == DType::kBF16 || x.dtype == DType::kF16;
  if (!is_16bit && x.dtype != DType::kF32 && x.dtype != DType::kF64) return;
  if (std::find(order_.begin(), order_.end(), module) == order_.end()) order_.push_back(module);
  std::vector<ActivationFingerprint>& entry = recorded_[{module, mb.first_sample}];
  if (!entry.empty()) return;  // recomputed in the backward
  ActivationFingerprint f;
  f.tp_rank = tp_rank_;
  f.rows = x.shape.rows();
  f.all_rows = x.dtype == DType::kF64 ? f.rows : mb.batch * mb.seq;  // losses are whole on every rank
  std::vector<std::byte> host;
  if (x.device.kind != DeviceKind::kCpu) {
    host.resize(static_cast<size_t>(x.bytes()));
    device_.copy(host.data(), x.data, x.bytes(), stream_);
    device_.synchronize(stream_);
    x = {host.data(), x.shape, x.dtype, Device{}};
  }
  const int64_t first = f.rows < f.all_rows ? tp_rank_ * x.numel() : 0;
  std::vector<float> wide;
  if (is_16bit) {
    wide.resize(static_cast<size_t>(x.numel()));
    cpu_backend().ops->cast(
        {.src = x, .dst = {reinterpret_cast<std::byte*>(wide.data()), x.shape, DType::kF32, x.device}}, {});
    project(wide.data(), first, x.numel(), f.sums);
  } else if (x.dtype == DType::kF32)
    project(x.as<float>(), first, x.numel(), f.sums);
  else
    project(x.as<double>(), first, x.numel(), f.sums);
  entry.push_back(f);
}

double activation_error(const std::vector<ActivationFingerprint>& layout,
                        const std::vector<ActivationFingerprint>& reference) {
  constexpr double kMissing = std::numeric_limits<double>::infinity();
  if (layout.empty() || reference.empty()) return kMissing;
  double worst = 0;
  if (layout.size() == reference.size()) {  // sharded the same way
    for (size_t i = 0; i < layout.size(); ++i)
      worst =
          std::max(worst, layout[i].rows == reference[i].rows ? distance(layout[i].sums, reference[i].sums) : kMissing);
    return worst;
  }
  const ActivationFingerprint& whole = reference.front();
  if (whole.rows != whole.all_rows) return kMissing;
  ActivationFingerprint sum;
  for (const ActivationFingerprint& f : layout) {
    if (f.rows == whole.rows) worst = std::max(worst, distance(f.sums, whole.sums));
    if (f.rows == whole.rows) continue;
    sum.rows += f.rows;
    for (size_t j = 0; j < f.sums.size(); ++j) sum.sums[j] += f.sums[j];
  }
  if (sum.rows == 0) return worst;
  return sum.rows == whole.rows ? std::max(worst, distance(sum.sums, whole.sums)) : kMissing;
}

}  // namespace gt
