// Peak throughput of a device in one dtype: measured by gpttrain bench ceilings and stored in the user's cache folder,
// or planning constants of an H200. Baseline of utilization and rooflines.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/tensor.h"

namespace gt {

// Causal attention of one shape, FLOP/s; the backward counts as 2.5 forwards.
struct AttentionCeiling {
  int64_t head_dim = 0, seq = 0;
  double forward = 0, backward = 0;
};

// FLOP/s of GEMMs, bytes/s (read and written) of a copy.
struct PeakRates {
  std::string device, dtype;
  double gemm = 0, copy = 0;
  double gemm_fp8 = std::numeric_limits<double>::quiet_NaN();  // NaN: unknown, or the device has no FP8 GEMMs
  std::vector<AttentionCeiling> attention;                     // measured shapes
  const AttentionCeiling* attention_at(int64_t head_dim, int64_t seq) const;  // nullptr: not measured
  bool planned = false;                                                       // planning constants, not measured
};

// Returns the path of ceilings-DEVICE-TYPE.json in the user's cache folder; "" if there is no such folder.
std::string ceilings_file(const std::string& device, DType);
// Keeps attention shapes that the file has for this device and dtype and `c` has not. Throws kIo.
void save_ceilings(PeakRates c, const std::string& path);
// Returns nothing if the file is missing, damaged, of another device or dtype, or not this user's own
// (kernels/core/cache_files.h): the rates are optional.
std::optional<PeakRates> load_ceilings(const std::string& device, DType);
// Reads a file named by the user. Throws kUsage if it is missing, damaged or of another dtype.
PeakRates read_ceilings(const std::string& path, DType);
// Returns H200 planning constants for 16-bit dtypes: published fractions of the data-sheet peaks, and cudnn-frontend's
// attention benchmarks. Not measured by this project.
PeakRates planning_ceilings(DType);

}  // namespace gt
