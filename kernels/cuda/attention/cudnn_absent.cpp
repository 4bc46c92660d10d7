// Replaces cudnn_library.cpp and attention_cudnn.cpp in builds without the headers of cuDNN or cudnn-frontend.
#include "kernels/core/check.h"
#include "kernels/cuda/attention/attention_cudnn.h"
#include "kernels/cuda/attention/cudnn_library.h"

namespace gt::cuda {

const std::string& cudnn_unavailable() {
  static const std::string obstacle = "this build is without cuDNN: " GPT_NO_CUDNN;
  return obstacle;
}

const std::string& cudnn_name() { return cudnn_unavailable(); }

CudnnHandle open_cudnn(cudaStream_t, std::string* why) {
  *why = cudnn_unavailable();
  return {nullptr, [](cudnnContext*) {}};
}

std::unique_ptr<AttentionPlan> plan_attention(cudnnContext*, const AttentionCall&, std::string* why) {
  *why = cudnn_unavailable();
  return nullptr;
}

}  // namespace gt::cuda
