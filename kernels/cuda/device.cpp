// CUDA's DeviceApi (memory, copies, streams, events) and the per-stream contexts.
#include "kernels/cuda/device.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "kernels/cuda/attention/attention_choice.h"
#include "kernels/cuda/context.h"

namespace gt::cuda {

namespace {

Exit code_of(cudaError_t status) {
  switch (status) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorHardwareStackError: return Exit::kHardware;
    case cudaErrorDevicesUnavailable: return Exit::kUsage;
    default: return Exit::kInternal;
  }
}

// GPTTRAIN_CUDA_SYNC=1: synchronize after every op, so that an asynchronous error names its op.
bool sync_each_op() {
  const char* sync = std::getenv("GPTTRAIN_CUDA_SYNC");
  return sync != nullptr && std::strcmp(sync, "1") == 0;
}

const char* advice(cudaError_t status) {
  switch (status) {
    case cudaErrorDevicesUnavailable:
      return ". Another process may hold the GPU: see its compute mode and processes (nvidia-smi -q -d COMPUTE,PIDS)";
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorLaunchFailure:
      return sync_each_op() ? "" : ". An op before it may be to blame: with GPTTRAIN_CUDA_SYNC=1 the error names it";
    default: return "";
  }
}

}  // namespace

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  fail(code_of(status), what, ": CUDA error ", cudaGetErrorName(status), ": ", cudaGetErrorString(status),
       advice(status));
}

std::byte* Context::scratch(int64_t bytes) {
  constexpr int64_t kMostAhead = int64_t{64} << 20;  // later requests are rarely much larger
  if (bytes > size_) {
    const int64_t grown = std::max(bytes, size_ + std::min(size_, kMostAhead));
    void* p = nullptr;
    const cudaError_t status = cudaMalloc(&p, static_cast<size_t>(grown));
    if (status != cudaSuccess) cudaGetLastError();  // reported here, not by the next launch
    if (status == cudaErrorMemoryAllocation)
      fail(Exit::kUsage, "out of memory on CUDA device ", index, ": an op needs ", bytes,
           " bytes beside its tensors. Use a smaller micro batch, more recomputation, a higher ZeRO stage, or more "
           "ranks");
    check(status, "scratch of a stream");
    blocks_.push_back(p);
    size_ = grown;
  }
  return blocks_.empty() ? nullptr : static_cast<std::byte*>(blocks_.back());
}

Context::~Context() {
  cudaSetDevice(index);
  drop_attention_plans(*this);
  gemm.reset();
  for (void* p : blocks_) cudaFree(p);
  if (stream != nullptr) cudaStreamDestroy(stream);
}

Context& enter(Stream s, const char* op) {
  GT_CHECK(s.device.kind == DeviceKind::kCuda && s.native != nullptr, op,
           ": the stream was not opened on a CUDA device");
  auto& c = *static_cast<Context*>(s.native);
  check(cudaSetDevice(c.index), op);
  return c;
}

void leave(Context& c, const char* op) {
  check(cudaGetLastError(), op);
  if (c.sync_each_op) check(cudaStreamSynchronize(c.stream), op);
}

namespace {

// Device for calls that name none: on a thread with no device selected they would create a context on GPU 0. The newest
// stream's device serves; any device of this process would.
std::atomic<int> default_device{0};

// An event and its device: the querying or destroying thread may have selected none.
struct DeviceEvent {
  int index;
  cudaEvent_t event;
};

cudaEvent_t event_of(Event e) { return static_cast<const DeviceEvent*>(e)->event; }

cudaEvent_t event_on_its_device(Event e, const char* what) {
  check(cudaSetDevice(static_cast<const DeviceEvent*>(e)->index), what);
  return event_of(e);
}

Event make_mark(int index, unsigned flags, const char* what) {
  check(cudaSetDevice(index), "selecting a device");
  cudaEvent_t e = nullptr;
  check(cudaEventCreateWithFlags(&e, flags), what);
  return new DeviceEvent{index, e};
}

double gib(size_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0); }

void* alloc(int index, int64_t bytes) {
  check(cudaSetDevice(index), "selecting a device");
  void* p = nullptr;
  const cudaError_t status = cudaMalloc(&p, static_cast<size_t>(std::max<int64_t>(bytes, 1)));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    fail(Exit::kUsage, "out of memory on CUDA device ", index, ": requested ", bytes, " bytes (",
         gib(static_cast<size_t>(bytes)), " GiB), free ", gib(free), " GiB of ", gib(total),
         " GiB. Use a smaller micro batch, more recomputation, a higher ZeRO stage, or more ranks");
  }
  check(status, "allocating device memory");
  return p;
}

void release(int index, void* p, int64_t) {
  cudaSetDevice(index);
  cudaFree(p);
}

void* alloc_host(int64_t bytes) {
  check(cudaSetDevice(default_device), "selecting a device");
  void* p = nullptr;
  const cudaError_t status = cudaHostAlloc(&p, static_cast<size_t>(std::max<int64_t>(bytes, 1)), cudaHostAllocPortable);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    fail(Exit::kUsage, "no ", bytes,
         " bytes of pinned host memory to be had: raise the limit of locked memory (ulimit -l) or free memory");
  }
  check(status, "allocating pinned host memory");
  return p;
}

void free_host(void* p, int64_t) {
  cudaSetDevice(default_device);
  cudaFreeHost(p);
}

void copy(void* dst, const void* src, int64_t bytes, Stream s) {
  if (bytes <= 0 || dst == src) return;
  Context& c = enter(s, "copy");
  check(cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes), cudaMemcpyDefault, c.stream), "copy");
  leave(c, "copy");
}

void zero(void* dst, int64_t bytes, Stream s) {
  if (bytes <= 0) return;
  Context& c = enter(s, "zero");
  check(cudaMemsetAsync(dst, 0, static_cast<size_t>(bytes), c.stream), "zero");
  leave(c, "zero");
}

Stream open_stream(int index, int) {
  check(cudaSetDevice(index), "selecting a device");
  default_device = index;
  auto c = std::make_unique<Context>();
  c->index = index;
  c->sync_each_op = sync_each_op();
  check(cudaDeviceGetAttribute(&c->shared_per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, index),
        "reading a device limit");
  check(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), "opening a stream");
  return {{DeviceKind::kCuda, static_cast<int8_t>(index)}, c.release()};
}

void close_stream(Stream s) { delete static_cast<Context*>(s.native); }

void synchronize(Stream s) {
  Context& c = enter(s, "synchronize");
  check(cudaStreamSynchronize(c.stream), "waiting for a stream");
}

Event create_event(int index) { return make_mark(index, cudaEventDisableTiming, "making an event"); }
Event make_timer(int index) { return make_mark(index, cudaEventDefault, "making an event that keeps the time"); }

double seconds_between(Event from, Event to) {
  constexpr const char* kWhat = "reading the time between two events";
  float ms = 0;
  check(cudaEventElapsedTime(&ms, event_on_its_device(from, kWhat), event_of(to)), kWhat);
  return static_cast<double>(ms) * 1e-3;
}

void destroy_event(Event e) {
  const std::unique_ptr<DeviceEvent> mark(static_cast<DeviceEvent*>(e));
  if (mark == nullptr) return;
  cudaSetDevice(mark->index);
  cudaEventDestroy(mark->event);
}

void record(Event e, Stream s) {
  Context& c = enter(s, "record");
  check(cudaEventRecord(event_of(e), c.stream), "recording an event");
}

void wait(Event e, Stream s) {
  Context& c = enter(s, "wait");
  check(cudaStreamWaitEvent(c.stream, event_of(e), 0), "waiting for an event");
}

void await(Event e) {
  constexpr const char* kWhat = "waiting for an event on the host";
  check(cudaEventSynchronize(event_on_its_device(e, kWhat)), kWhat);
}

bool done(Event e) {
  constexpr const char* kWhat = "asking for an event";
  const cudaError_t status = cudaEventQuery(event_on_its_device(e, kWhat));
  if (status == cudaErrorNotReady) {
    cudaGetLastError();  // not an error: keep the next launch from reporting it
    return false;
  }
  check(status, kWhat);
  return true;
}

int count() {
  int n = 0;
  if (cudaGetDeviceCount(&n) == cudaSuccess) return n;
  cudaGetLastError();
  return 0;
}

std::string describe(int index) {
  cudaDeviceProp p{};
  check(cudaGetDeviceProperties(&p, index), "asking for a device's properties");
  return cat(p.name, ", ", static_cast<int64_t>(gib(p.totalGlobalMem)), " GiB, sm_", p.major, p.minor);
}

void memory(int index, int64_t* free_bytes, int64_t* total_bytes) {
  check(cudaSetDevice(index), "selecting a device");
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for free memory");
  *free_bytes = static_cast<int64_t>(free);
  *total_bytes = static_cast<int64_t>(total);
}

}  // namespace

void* raw_stream(Stream s) { return enter(s, "a stream's handle").stream; }

const DeviceApi& device_api() {
  static constexpr DeviceApi kApi{.name = "cuda",
                                  .alloc = alloc,
                                  .free = release,
                                  .alloc_host = alloc_host,
                                  .free_host = free_host,
                                  .copy = copy,
                                  .zero = zero,
                                  .open_stream = open_stream,
                                  .close_stream = close_stream,
                                  .synchronize = synchronize,
                                  .create_event = create_event,
                                  .destroy_event = destroy_event,
                                  .record = record,
                                  .wait = wait,
                                  .await = await,
                                  .done = done,
                                  .make_timer = make_timer,
                                  .seconds_between = seconds_between,
                                  .capture = capture,
                                  .launch = launch,
                                  .destroy_graph = destroy_graph,
                                  .combine = combine,
                                  .count = count,
                                  .describe = describe,
                                  .memory = memory};
  return kApi;
}

}  // namespace gt::cuda
