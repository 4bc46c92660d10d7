// Selects the cuBLASLt algorithm of a GEMM: the heuristic's first suggestion (default), the one recorded in a plan
// file, or the fastest measured, which is then added to the file. One table per process, so that ranks running as
// threads agree. Independent of plans and descriptors: an algorithm is 64 bytes, a GEMM is a string key.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "kernels/backend.h"

namespace gt::cuda {

// cuBLASLt workspace of each stream that runs GEMMs, bytes. NVIDIA recommends 32 MiB; split-k partial sums of weight
// gradients, in f32, need more (fc1 of 1600 columns: 41 MB each).
constexpr int64_t kGemmWorkspaceBytes = int64_t{256} << 20;

struct GemmChoice {
  std::array<uint64_t, 8> algo{};  // cublasLtMatmulAlgo_t: storable, valid for one library version
  int index = 0;                   // position in cuBLASLt's suggestions
  double us = 0;                   // measured median, microseconds
};

class GemmChoices {
 public:
  // The process-wide table; disabled until use(). Thread-safe.
  static GemmChoices& instance();

  // Enables the table for devices of this identity (device name, library versions) and reads the plan file. Returns a
  // message for the user when the file is rejected, and why; empty otherwise. Repeated identical calls have no effect.
  std::string use(const GemmTuning&, const std::string& identity);

  // Returns the algorithm of GEMM `key` on a device of this identity: the table's when `fits` accepts it, otherwise the
  // result of `time`, which is stored (nullopt: timing impossible). nullopt: use the heuristic's first suggestion.
  std::optional<GemmChoice> choose(const std::string& key, const std::string& identity,
                                   const std::function<bool(const GemmChoice&)>& fits,
                                   const std::function<std::optional<GemmChoice>()>& time);
  // text() serializes the table in the file format. take() merges such a text, whose choices take precedence over the
  // table's; `settled` disables timing from then on. Returns why the text was rejected; empty on success.
  std::string text() const;
  std::string take(const std::string& text, bool settled);
  bool times() const { return tuning_.time && !settled_; }
  bool on() const { return on_; }

 private:
  using Table = std::map<std::string, GemmChoice>;
  std::string read();
  std::string parse(std::istream&, Table& into, bool& ours) const;
  std::string written() const;
  void write() const;
  bool in_cache() const;  // the default file: untrusted unless it is this user's own

  mutable std::mutex mutex_;
  GemmTuning tuning_;
  std::string identity_;
  bool on_ = false, may_write_ = false, settled_ = false;
  Table table_;
};

// Whether f32 GEMMs round their inputs to TF32. Set before the first GEMM.
inline std::atomic<bool> gemm_in_tf32{false};
// Whether FP8 GEMMs of the forward pass may use fast accumulation (fewer bits). Set before the first GEMM.
inline std::atomic<bool> gemm_fp8_fast{true};

// Returns what a choice is valid for: device name and SM count, cuBLASLt and driver versions, TF32. Defined in
// gemm_lt.cpp.
std::string gemm_identity(int device);

}  // namespace gt::cuda
