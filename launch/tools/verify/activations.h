// Fingerprints of activations, which identify the first layer that differs between two runs. A fingerprint is a set of
// random projections. Projections are linear, so those of row shards sum to that of the full tensor. The relative
// difference of two fingerprints estimates that of the tensors (Johnson and Lindenstrauss 1984).
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/device.h"
#include "model/activation_tap.h"

namespace gt {

struct ActivationFingerprint {
  int tp_rank = 0;
  int64_t rows = 0, all_rows = 0;  // on this rank; of the whole microbatch
  std::array<double, 8> sums{};
};

// (module, first sample of the microbatch) → one entry per TP rank.
using Activations = std::map<std::pair<std::string, int64_t>, std::vector<ActivationFingerprint>>;

// Records fingerprints of floating-point tensors on the host or on the device of `stream`.
class ActivationRecorder final : public ActivationObserver {
 public:
  ActivationRecorder(int tp_rank, const DeviceApi& device, Stream stream)
      : tp_rank_(tp_rank), device_(device), stream_(stream) {}
  void activation(const std::string& module, Tensor x, const MicroBatch& mb) override;
  const Activations& recorded() const { return recorded_; }
  const std::vector<std::string>& order() const { return order_; }  // modules in order of first appearance

 private:
  int tp_rank_;
  const DeviceApi& device_;
  Stream stream_;
  Activations recorded_;
  std::vector<std::string> order_;
};

// Relative difference of one module's output for one microbatch: the maximum over ranks that hold it whole, or that of
// the sum over its row shards. Infinity if data is missing or not finite.
double activation_error(const std::vector<ActivationFingerprint>& layout,
                        const std::vector<ActivationFingerprint>& reference);

}  // namespace gt
