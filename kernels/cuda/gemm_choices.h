// Which of cuBLASLt's algorithms a matrix product takes: by default its first suggestion; else the one that a file
// names, or the one that was the fastest when it was timed, which is then added to the file. One table for the process,
// so that ranks that are its threads take the same. Knows nothing of plans and descriptors: algorithms are 64 bytes,
// products are texts.
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

// Of each stream that multiplies. 32 MiB is what NVIDIA recommends; the parts of a split sum of weight gradients, in f32,
// take more (fc1 of 1600 columns: 41 MB each).
constexpr int64_t kGemmWorkspaceBytes = int64_t{256} << 20;

struct GemmChoice {
  std::array<uint64_t, 8> algo{};  // cublasLtMatmulAlgo_t: may be stored for one version of the library
  int index = 0;                   // among cuBLASLt's suggestions
  double us = 0;                   // median microseconds when it was timed
};

class GemmChoices {
 public:
  // The process' own; off until use().
  static GemmChoices& instance();

  // Turns it on for devices of this identity (name, libraries: what a file is good for) and reads the file. Returns
  // what the user should be told: a file that was left aside and why; empty: nothing. The same again does nothing.
  std::string use(const GemmTuning&, const std::string& identity);

  // For product `key` on a device of this identity: what is in the table if `fits` agrees, else what `time` finds
  // (nothing: it could not), which is kept. Nothing: take the first suggestion.
  std::optional<GemmChoice> choose(const std::string& key, const std::string& identity,
                                   const std::function<bool(const GemmChoice&)>& fits,
                                   const std::function<std::optional<GemmChoice>()>& time);
  // All of the table as the text of a file. And such a text to take over: its choices go before those of the table;
  // whether from now on nothing is timed. Returns why it was left aside; empty: it was taken.
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

  mutable std::mutex mutex_;
  GemmTuning tuning_;
  std::string identity_;
  bool on_ = false, may_write_ = false, settled_ = false;
  Table table_;
};

// Whether products of f32 round their factors to TF32: as the process was told last, before its first product.
inline std::atomic<bool> gemm_in_tf32{false};
// Whether products of 8 bits of a forward pass may keep fewer bits of their sums, likewise.
inline std::atomic<bool> gemm_fp8_fast{true};

// What a choice is good for: the device's name and size, versions of cuBLASLt and driver, TF32. gemm_lt.cpp defines it.
std::string gemm_identity(int device);

}  // namespace gt::cuda
