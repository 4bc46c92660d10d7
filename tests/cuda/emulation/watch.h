// Interface between the emulation and the race detector: who runs, where threads synchronize, which stream waits for
// which. unwatched.cpp implements it as no-ops. races.cpp and order.cpp, in races/libgpttrain_cuda.so, detect unordered
// accesses; kernels there are instrumented at each load and store.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>

namespace gt::emulated::watch {

// The calling thread begins a work item of this stream: a kernel, a copy or a GEMM.
void begin_work(cudaStream_t);
// Memory accesses of work items other than kernels. what: a string literal.
void reads(const void* p, size_t bytes, const char* what);
void writes(const void* p, size_t bytes, const char* what);

// Events of the running kernel, whose threads are fibers: sequential, each on its own stack.
void kernel_begins(const void* dynamic_shared, size_t bytes);
void block_begins();
void thread_runs(size_t index, const void* stack, size_t stack_bytes);
void block_meets();            // at __syncthreads
void warp_meets(size_t warp);  // at __syncwarp; shuffles do not order memory
void kernel_ends();
// Accesses of the running thread beyond its instrumented loads and stores.
void atomic(const void* p, size_t bytes, const void* caller);
void copies(const void* to, const void* from, size_t bytes);

// Synchronization of streams, events and the calling host thread.
void record(cudaEvent_t, cudaStream_t);
void wait(cudaStream_t, cudaEvent_t);
void host_waits(cudaEvent_t);
void host_waits(cudaStream_t);
void host_waits_for_all();
void ends(cudaStream_t);
void ends(cudaEvent_t);
// New memory: without previous accesses.
void fresh(const void* p, size_t bytes);

}  // namespace gt::emulated::watch
