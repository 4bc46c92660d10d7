// Forwards the libcudnn functions that cudnn-frontend calls to the library loaded at run time. Hidden symbols: they
// cannot clash with another cuDNN in the process.
#include "kernels/cuda/attention/cudnn_library.h"

#include <cudnn.h>
#include <dlfcn.h>
#include <nvrtc.h>

#include "kernels/core/check.h"

namespace gt::cuda {
namespace {

struct Library {
  void* handle = nullptr;
  std::string name, obstacle;
};

Library load() {
  // Loader search order: LD_LIBRARY_PATH, our runpath (our folder, the toolkit), system folders.
  const std::string file = cat("libcudnn.so.", CUDNN_MAJOR);
  Library l;
  l.handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (l.handle == nullptr) {
    const char* text = dlerror();
    l.obstacle = cat("no cuDNN: ", text != nullptr ? text : file.c_str());
    return l;
  }
  using GetVersion = size_t (*)();
  const auto version_of = reinterpret_cast<GetVersion>(dlsym(l.handle, "cudnnGetVersion"));
  const size_t version = version_of != nullptr ? version_of() : 0;
  const auto text = [](size_t v) { return cat(v / 10000, '.', v % 10000 / 100, '.', v % 100); };
  l.name = cat("cuDNN ", text(version));
  if (version < CUDNN_VERSION)
    l.obstacle = cat(l.name, " is older than the ", text(CUDNN_VERSION), " that this was built with");
  return l;
}

const Library& library() {
  static const Library l = load();
  return l;
}

// Callers check cudnn_unavailable() first, so nothing below runs without the library.
template <class F>
F* symbol(const char* name) {
  void* f = library().handle != nullptr ? dlsym(library().handle, name) : nullptr;
  GT_CHECK(f != nullptr, library().name, " lacks ", name);
  return reinterpret_cast<F*>(f);
}

}  // namespace

const std::string& cudnn_unavailable() { return library().obstacle; }
const std::string& cudnn_name() { return library().name; }

CudnnHandle open_cudnn(cudaStream_t stream, std::string* why) {
  CudnnHandle handle{nullptr, [](cudnnContext* h) { cudnnDestroy(h); }};
  cudnnHandle_t made = nullptr;
  cudnnStatus_t status = cudnnCreate(&made);
  if (status == CUDNN_STATUS_SUCCESS) {
    handle.reset(made);
    status = cudnnSetStream(made, stream);
  }
  if (status == CUDNN_STATUS_SUCCESS) return handle;
  *why = cat("opening ", cudnn_name(), ": ", cudnnGetErrorString(status));
  return {nullptr, [](cudnnContext*) {}};
}

}  // namespace gt::cuda

#define PASS_ON(Result, function, parameters, ...)                          \
  Result function parameters {                                              \
    static auto* const f = gt::cuda::symbol<decltype(function)>(#function); \
    return f(__VA_ARGS__);                                                  \
  }

extern "C" {

PASS_ON(cudnnStatus_t, cudnnCreate, (cudnnHandle_t * handle), handle)
PASS_ON(cudnnStatus_t, cudnnDestroy, (cudnnHandle_t handle), handle)
PASS_ON(cudnnStatus_t, cudnnSetStream, (cudnnHandle_t handle, cudaStream_t stream), handle, stream)
PASS_ON(cudnnStatus_t, cudnnGetStream, (cudnnHandle_t handle, cudaStream_t* stream), handle, stream)
PASS_ON(size_t, cudnnGetVersion, ())
PASS_ON(const char*, cudnnGetErrorString, (cudnnStatus_t status), status)
PASS_ON(void, cudnnGetLastErrorString, (char* text, size_t size), text, size)
PASS_ON(cudnnStatus_t, cudnnBackendCreateDescriptor,
        (cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor), type, descriptor)
PASS_ON(cudnnStatus_t, cudnnBackendDestroyDescriptor, (cudnnBackendDescriptor_t descriptor), descriptor)
PASS_ON(cudnnStatus_t, cudnnBackendFinalize, (cudnnBackendDescriptor_t descriptor), descriptor)
PASS_ON(cudnnStatus_t, cudnnBackendSetAttribute,
        (cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
         int64_t count, const void* values),
        descriptor, name, type, count, values)
PASS_ON(cudnnStatus_t, cudnnBackendGetAttribute,
        (const cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
         int64_t requested, int64_t* count, void* values),
        descriptor, name, type, requested, count, values)
PASS_ON(cudnnStatus_t, cudnnBackendExecute,
        (cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t tensors), handle, plan, tensors)

// cudnn-frontend can compile its own kernels with NVRTC (HeurMode_t::OPENSOURCE). We never do, and must load on
// machines without NVRTC, so these stubs report failure.
nvrtcResult nvrtcCreateProgram(nvrtcProgram*, const char*, const char*, int, const char* const*, const char* const*) {
  return NVRTC_ERROR_INTERNAL_ERROR;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcCompileProgram(nvrtcProgram, int, const char* const*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, size_t*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetPTX(nvrtcProgram, char*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetPTXSize(nvrtcProgram, size_t*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char*) { return NVRTC_ERROR_INTERNAL_ERROR; }
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, size_t*) { return NVRTC_ERROR_INTERNAL_ERROR; }

}  // extern "C"
