// What a device does at most, in one type: measured by gpttrain bench ceilings and kept in the user's cache folder, or
// what planning assumes of an H200. Training and rooflines hold speed against it.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/tensor.h"

namespace gt {

// Causal attention of one shape, FLOP/s; the backward counted as 2.5 forwards.
struct AttentionCeiling {
  int64_t head_dim = 0, seq = 0;
  double forward = 0, backward = 0;
};

// FLOP/s of products, bytes/s (read and written) of a copy.
struct PeakRates {
  std::string device, dtype;
  double gemm = 0, copy = 0;
  double gemm_fp8 = std::numeric_limits<double>::quiet_NaN();  // NaN: not known, or the device has no such products
  std::vector<AttentionCeiling> attention;                     // of the shapes that were measured
  const AttentionCeiling* attention_at(int64_t head_dim, int64_t seq) const;  // nullptr: not among them
  bool planned = false;                                                       // not measured anywhere
};

// ceilings-DEVICE-TYPE.json in the user's cache folder; "" when there is none.
std::string ceilings_file(const std::string& device, DType);
// Shapes of attention that the file has of this device and type, and `c` has not, stay there. kIo.
void save_ceilings(PeakRates c, const std::string& path);
// Nothing where the file is not there, is damaged or of another device or type: it is advice.
std::optional<PeakRates> load_ceilings(const std::string& device, DType);
// A file that the user named: kUsage where it is not there, is damaged or of another type.
PeakRates read_ceilings(const std::string& path, DType);
// An H200's, of half types, as the performance plan assumes them: shares of the data sheet's figures that others have
// published, and cudnn-frontend's benchmarks of attention. No measurement of ours.
PeakRates planning_ceilings(DType);

}  // namespace gt
