// libcudnn, loaded at run time: where it is not, this backend works as well, with attention of its own.
#pragma once
#include <cuda_runtime_api.h>

#include <memory>
#include <string>

struct cudnnContext;  // a cudnnHandle_t points to one

namespace gt::cuda {

// Why cuDNN cannot be used here; empty when it can. Loads it at the first call.
const std::string& cudnn_obstacle();

// "cuDNN 9.19.0"; only where there is no obstacle.
const std::string& cudnn_name();

// A handle for work on this stream of the current device; nullptr with the reason in *why.
using CudnnHandle = std::unique_ptr<cudnnContext, void (*)(cudnnContext*)>;
CudnnHandle open_cudnn(cudaStream_t, std::string* why);

}  // namespace gt::cuda
