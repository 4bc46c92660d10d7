// Fingerprints of a run's activations, to say which layer was the first to differ. A fingerprint is a handful of random
// projections: linear, so that those of row shards add up to that of the whole, and the relative difference of two
// fingerprints estimates that of the tensors (Johnson and Lindenstrauss 1984).
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

struct ActivationPrint {
  int tp_rank = 0;
  int64_t rows = 0, all_rows = 0;  // seen by this rank; of the microbatch
  std::array<double, 8> sums{};
};

// (module, first sample of the microbatch) -> one entry a tp rank.
using Activations = std::map<std::pair<std::string, int64_t>, std::vector<ActivationPrint>>;

// Takes fingerprints of floating tensors of the host or of the device that `stream` computes on.
class ActivationRecorder final : public ActivationTap {
 public:
  ActivationRecorder(int tp_rank, const DeviceApi& device, Stream stream)
      : tp_rank_(tp_rank), device_(device), stream_(stream) {}
  void activation(const std::string& module, Tensor x, const MicroBatch& mb) override;
  const Activations& seen() const { return seen_; }
  const std::vector<std::string>& order() const { return order_; }  // modules, in the order of their first appearance

 private:
  int tp_rank_;
  const DeviceApi& device_;
  Stream stream_;
  Activations seen_;
  std::vector<std::string> order_;
};

// Relative difference of one module's output for one microbatch: the worst over ranks that hold it whole, or that of
// the sum of its row shards. Infinity when something is missing or not finite.
double activation_error(const std::vector<ActivationPrint>& layout, const std::vector<ActivationPrint>& reference);

}  // namespace gt
