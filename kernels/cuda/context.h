// What stands behind a CUDA Stream: the queue itself, the cuBLASLt plans made for it, workspace and scratch. One
// context is used by one host thread at a time. Knows nothing of ops; every file of this backend starts from here.
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

struct Context {
  cudaStream_t stream = nullptr;
  int index = 0;
  bool sync_each_op = false;     // GPTTRAIN_CUDA_SYNC=1: wait after every op, so that an error names its op
  int shared_per_block = 0;      // bytes of shared memory that one block may opt in to
  bool attention_ready = false;  // the attention kernels' shared memory limits are raised on this device
  bool loss_ready = false;       // the loss kernels' too
  std::unique_ptr<GemmPlans, void (*)(GemmPlans*)> gemm{nullptr, nullptr};  // made by the first product of this stream

  // Device memory of at least `bytes` for the op that is being queued: every op of the stream starts at the same place,
  // stream order keeps them apart. Allocates only while growing; old blocks live until the stream is closed, so that
  // captured graphs stay valid.
  std::byte* scratch(int64_t bytes);

  Context() = default;
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context();

 private:
  std::vector<void*> blocks_;
  int64_t size_ = 0;
};

// Selects the stream's device and returns its context; throws for a stream of another device.
Context& enter(Stream s, const char* op);

// After the launches of an op: launch errors and earlier asynchronous errors, under the op's name.
void leave(Context& c, const char* op);

// Carves aligned pieces out of one scratch block: sizes first (plan), then pointers.
class Carver {
 public:
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
