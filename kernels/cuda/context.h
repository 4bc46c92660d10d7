// Per-stream state of the CUDA backend: cudaStream_t, cuBLASLt plans, workspace and scratch. One context is used by one
// host thread at a time. Independent of ops; every file of this backend includes it.
#pragma once
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <utility>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/tensor.h"

namespace gt::cuda {

class GemmPlans;  // gemm_lt.cpp

// Throws gt::Error "<what>: <name>: <text>"; kHardware for errors that the device itself reports.
void check(cudaError_t status, const char* what);

// State of one CUDA stream.
struct Context {
  cudaStream_t stream = nullptr;
  int index = 0;
  bool sync_each_op = false;     // GPTTRAIN_CUDA_SYNC=1: wait after every op, so that an error names its op
  int shared_per_block = 0;      // opt-in shared memory limit per block, bytes
  bool attention_ready = false;  // shared memory limits of the attention kernels are raised on this device
  bool loss_ready = false;       // the same for the loss kernels
  std::unique_ptr<GemmPlans, void (*)(GemmPlans*)> gemm{nullptr, nullptr};  // created by the first GEMM of this stream

  // Returns device scratch of at least `bytes` for the op being queued. All ops of a stream share one buffer; stream
  // order separates them. Allocates only to grow; old blocks live until the stream is closed, so captured graphs stay
  // valid.
  std::byte* scratch(int64_t bytes);

  Context() = default;
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context();

 private:
  std::vector<void*> blocks_;
  int64_t size_ = 0;
};

// Selects the stream's device and returns its context; throws when the stream belongs to another device kind.
Context& enter(Stream s, const char* op);

// Call after the launches of an op: reports launch errors and earlier asynchronous errors under the op's name.
void leave(Context& c, const char* op);

// Lays out 256-byte aligned buffers in one scratch block of bytes().
class ScratchLayout {
 public:
  // Reserves `bytes`; returns their offset.
  int64_t add(int64_t bytes) {
    const int64_t at = size_;
    size_ += (bytes + 255) / 256 * 256;
    return at;
  }
  int64_t bytes() const { return size_; }

 private:
  int64_t size_ = 0;
};

}  // namespace gt::cuda
