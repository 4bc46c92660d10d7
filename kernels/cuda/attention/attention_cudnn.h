// Causal attention as cuDNN graphs: describes a call, checks support, makes execution plans. Independent of stream
// contexts, kernel selection and logging. Only attention_cudnn.cpp includes cudnn-frontend.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/core/tensor.h"

struct cudnnContext;  // cudnnHandle_t is a pointer to it

namespace gt::cuda {

// One pass of Attention or AttentionGrad (kernels/ops.h) over whole sequences, without dropout.
struct AttentionCall {
  int64_t batch = 0, seq = 0, heads = 0, kv_heads = 0, head_dim = 0;
  DType type = DType::kBF16;
  float scale = 1;
  int64_t window = 0;                           // keys that a query attends to, below seq; 0: all preceding
  bool backward = false, deterministic = true;  // the forward is always deterministic

  std::array<int64_t, 3> pitch = {}, grad_pitch = {};  // elements between rows of q, k, v; of their gradients

  bool operator==(const AttentionCall&) const = default;
};

struct AttentionPointers {
  std::byte *q = nullptr, *k = nullptr, *v = nullptr, *out = nullptr, *lse = nullptr;  // 16-byte aligned
  std::byte *dout = nullptr, *dq = nullptr, *dk = nullptr, *dv = nullptr;              // backward
};

// cuDNN execution plan of one call. Not thread-safe; runs on the stream of the handle that it was made with.
class AttentionPlan {
 public:
  virtual ~AttentionPlan() = default;
  virtual int64_t workspace() const = 0;  // bytes of device memory needed while it runs
  // Queues the plan; returns cuDNN's error message, empty on success.
  virtual std::string run(const AttentionPointers&, void* workspace) = 0;
};

// Returns nullptr and the reason in *why when cuDNN has no engine for this call on the handle's device.
std::unique_ptr<AttentionPlan> plan_attention(cudnnContext* handle, const AttentionCall&, std::string* why);

// Both checks run without a device. Returns why the graph of this call is refused for an architecture (90: sm_90);
// empty when cuDNN accepts dimensions, strides and options and builds the operation graph.
std::string graph_unsupported_reason(const AttentionCall&, int sm);
// Returns why cuDNN's heuristics find no engine for this call within `workspace` bytes (graph workspace excluded);
// empty when they find one. `device`: JSON as returned for CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION. Some engines
// require a libcuda, if only a stub.
std::string engine_unsupported_reason(const AttentionCall&, int sm, const std::string& device, int64_t workspace);

}  // namespace gt::cuda
