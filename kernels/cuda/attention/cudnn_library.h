// libcudnn, loaded at run time. Optional: without it this backend uses its own attention kernels.
#pragma once
#include <cuda_runtime_api.h>

#include <memory>
#include <string>

struct cudnnContext;  // cudnnHandle_t is a pointer to it

namespace gt::cuda {

// Returns why cuDNN is unavailable; empty when it is usable. Loads the library on the first call.
const std::string& cudnn_unavailable();

// Returns name and version, e.g. "cuDNN 9.19.0". Requires: cudnn_unavailable() is empty.
const std::string& cudnn_name();

// Opens a handle bound to this stream of the current device; nullptr and the reason in *why on failure.
using CudnnHandle = std::unique_ptr<cudnnContext, void (*)(cudnnContext*)>;
CudnnHandle open_cudnn(cudaStream_t, std::string* why);

}  // namespace gt::cuda
