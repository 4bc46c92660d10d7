// Emulates the CUDA runtime functions that this backend calls. Synchronous, unless the stream is being captured.
// Streams, events and graphs: graphs.cpp. New memory is filled with NaN. GPTTRAIN_EMULATED_SHARED: bytes of shared
// memory per block (default: an H200's 232448). GPTTRAIN_EMULATED_DEVICES: number of devices (default 1), on PCI buses
// EE00:00, EE00:01 and so on.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "tests/cuda/emulation/device_memory.h"
#include "tests/cuda/emulation/emulate.h"
#include "tests/cuda/emulation/graphs.h"
#include "tests/cuda/emulation/health.h"

using gt::emulated::forbidden;
using gt::emulated::OnDevice;

namespace gt::emulated {

namespace {

std::mutex shared_limits_mutex;
std::map<const void*, size_t> shared_limits;  // dynamic shared memory limits raised by cudaFuncSetAttribute

void allow_shared(const void* kernel, int bytes) {
  const std::lock_guard lock(shared_limits_mutex);
  shared_limits[kernel] = static_cast<size_t>(bytes);
}

}  // namespace

size_t shared_memory_limit(const void* kernel) {
  const std::lock_guard lock(shared_limits_mutex);
  const auto it = shared_limits.find(kernel);
  return it == shared_limits.end() ? size_t{47} << 10 : it->second;
}

}  // namespace gt::emulated

extern "C" {

cudaError_t cudaMalloc(void** p, size_t n) {
  if (const cudaError_t e = gt::emulated::entered(); e != cudaSuccess) return e;
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  *p = gt::emulated::device_alloc(n);
  return *p == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFree(void* p) {
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  gt::emulated::watch::host_waits_for_all();
  return gt::emulated::device_free(p), gt::emulated::entered();
}
cudaError_t cudaHostAlloc(void** p, size_t n, unsigned) {
  if (const cudaError_t e = gt::emulated::entered(); e != cudaSuccess) return e;
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  *p = std::aligned_alloc(512, (n + 511) / 512 * 512);
  if (*p == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*p, 0xFF, n);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) { return std::free(p), gt::emulated::entered(); }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  if (const cudaError_t e = gt::emulated::entered(); e != cudaSuccess) return e;
  *total = size_t{1} << 34;
  *free = *total - static_cast<size_t>(gt::emulated::graph_bytes());
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* d, const void* s, size_t n, cudaMemcpyKind, cudaStream_t stream) {
  return gt::emulated::queue(stream, [=] {
    const OnDevice now;
    gt::emulated::watch::reads(s, n, "cudaMemcpyAsync");
    gt::emulated::watch::writes(d, n, "cudaMemcpyAsync");
    std::memmove(d, s, n);
  });
}
cudaError_t cudaMemsetAsync(void* d, int v, size_t n, cudaStream_t stream) {
  return gt::emulated::queue(stream, [=] {
    const OnDevice now;
    gt::emulated::watch::writes(d, n, "cudaMemsetAsync");
    std::memset(d, v, n);
  });
}

// Waiting for a stream or an event would never return during its capture.
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  gt::emulated::count_wait();
  if (const cudaError_t e = gt::emulated::entered(); e != cudaSuccess) return e;
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  return gt::emulated::watch::host_waits(s), cudaSuccess;
}

cudaError_t cudaGetLastError() { return gt::emulated::last_error(); }
const char* cudaGetErrorName(cudaError_t e) {
  switch (e) {
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorDevicesUnavailable: return "cudaErrorDevicesUnavailable";
    case cudaErrorECCUncorrectable: return "cudaErrorECCUncorrectable";
    case cudaErrorContained: return "cudaErrorContained";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    default: return "emulated";
  }
}
const char* cudaGetErrorString(cudaError_t) { return "an error of the emulation"; }
cudaError_t cudaSetDevice(int) { return gt::emulated::select_device(), gt::emulated::entered(); }
cudaError_t cudaGetDeviceCount(int* n) {
  const char* setting = std::getenv("GPTTRAIN_EMULATED_DEVICES");
  return *n = setting != nullptr ? std::atoi(setting) : 1, cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* bus, int size, int device) {
  return std::snprintf(bus, static_cast<size_t>(size), "EE00:%02X:00.0", device), cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* v) { return *v = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* v) { return *v = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute a, int value) {
  if (a == cudaFuncAttributeMaxDynamicSharedMemorySize) gt::emulated::allow_shared(kernel, value);
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = {};
  std::strcpy(p->name, "emulated device");
  p->major = 9;
  p->totalGlobalMem = size_t{1} << 34;
  p->multiProcessorCount = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* v, cudaDeviceAttr a, int) {
  const char* shared = std::getenv("GPTTRAIN_EMULATED_SHARED");
  *v = a == cudaDevAttrComputeCapabilityMajor         ? 9
       : a == cudaDevAttrMaxSharedMemoryPerBlockOptin ? (shared != nullptr ? std::atoi(shared) : 232448)
       : a == cudaDevAttrL2CacheSize                  ? 1 << 20
                                                      : 0;
  return cudaSuccess;
}

}  // extern "C"
