// Causal attention as cuDNN graphs: describes a call, checks support, makes execution plans. Independent of stream
// contexts, kernel selection and logging. Only attention_cudnn.cpp includes cudnn-frontend.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/core/tensor.h"

struct cudnnContext;  // cudnnHandle_t is a pointer to it

namespace gt::cuda {

// One pass of Attention or AttentionGrad (kernels/ops.h) over packed qkv, without dropout.
struct AttentionCall {
  int64_t batch = 0, seq = 0, heads = 0, kv_heads = 0, head_dim = 0;
  DType type = DType::kBF16;
  float scale = 1;
  int64_t window = 0;                           // keys that a query attends to, below seq; 0: all preceding
  bool backward = false, deterministic = true;  // the forward is always deterministic

  bool operator==(const AttentionCall&) const = default;
  int64_t pitch() const { return (heads + 2 * kv_heads) * head_dim; }  // elements per row of packed qkv
};

struct AttentionPointers {
  std::byte *qkv = nullptr, *out = nullptr, *lse = nullptr, *dout = nullptr, *dqkv = nullptr;  // 16-byte aligned
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
