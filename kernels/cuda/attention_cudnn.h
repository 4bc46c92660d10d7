// Causal attention as graphs of cuDNN: what a call is for it, whether it takes it, plans. Knows nothing of streams'
// contexts, of choosing between kernels, of logs; attention_cudnn.cpp alone includes cudnn-frontend.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/core/tensor.h"

struct cudnnContext;  // a cudnnHandle_t points to one

namespace gt::cuda {

// One pass of Attention or AttentionGrad (kernels/ops.h) over packed qkv, without dropout.
struct AttentionCall {
  int64_t batch = 0, seq = 0, heads = 0, kv_heads = 0, head_dim = 0;
  DType type = DType::kBF16;
  float scale = 1;
  bool backward = false, deterministic = true;  // the forward always is

  bool operator==(const AttentionCall&) const = default;
  int64_t pitch() const { return (heads + 2 * kv_heads) * head_dim; }  // of a row of qkv, elements
};

struct AttentionPointers {
  std::byte *qkv = nullptr, *out = nullptr, *lse = nullptr, *dout = nullptr, *dqkv = nullptr;  // 16-byte aligned
};

// What cuDNN will run for a call. Used by one thread at a time, on the stream of the handle that it was made with.
class AttentionPlan {
 public:
  virtual ~AttentionPlan() = default;
  virtual int64_t workspace() const = 0;  // bytes of device memory while it runs
  // Queues it; returns why cuDNN could not, empty when it could.
  virtual std::string run(const AttentionPointers&, void* workspace) = 0;
};

// nullptr, and the reason in *why, where cuDNN has nothing for this call on the handle's device.
std::unique_ptr<AttentionPlan> plan_attention(cudnnContext* handle, const AttentionCall&, std::string* why);

// Both need no device. Why the graph of this call is refused for GPUs of this architecture (90: sm_90); empty when its
// dimensions, strides and options are accepted and cuDNN makes an operation graph of it.
std::string refusal_of_graph(const AttentionCall&, int sm);
// Why cuDNN's heuristics have no engine for this call that takes at most `workspace` bytes beside what the graph itself
// needs, on the device that this JSON text describes in cuDNN's own terms (what it gives for
// CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION); empty when they have. Some engines want a libcuda, if only a stub.
std::string refusal_of_device(const AttentionCall&, int sm, const std::string& device, int64_t workspace);

}  // namespace gt::cuda
