// What the emulation tells whoever watches the order of accesses to memory: who works, where threads meet, which stream
// waits for which. unwatched.cpp: nobody does. races.cpp and order.cpp, in emulated_races/libgpttrain_cuda.so, find
// accesses that nothing orders; kernels there are compiled so that each of their loads and stores is told too.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>

namespace gt::emulated::watch {

// The calling thread begins a piece of work of this stream: a kernel, a copy, a product.
void piece(cudaStream_t);
// What it reads and writes, of pieces that are no kernels. what: a string literal.
void reads(const void* p, size_t bytes, const char* what);
void writes(const void* p, size_t bytes, const char* what);

// Of the kernel that runs, whose threads are fibers: one after the other, on stacks of their own.
void kernel_begins(const void* dynamic_shared, size_t bytes);
void block_begins();
void thread_runs(size_t index, const void* stack, size_t stack_bytes);
void block_meets();            // at __syncthreads
void warp_meets(size_t warp);  // at __syncwarp; shuffles order no memory
void kernel_ends();
// By the running thread, beside its own loads and stores.
void atomic(const void* p, size_t bytes, const void* caller);
void copies(const void* to, const void* from, size_t bytes);

// Streams, events and the calling thread of the host.
void record(cudaEvent_t, cudaStream_t);
void wait(cudaStream_t, cudaEvent_t);
void host_waits(cudaEvent_t);
void host_waits(cudaStream_t);
void host_waits_for_all();
void ends(cudaStream_t);
void ends(cudaEvent_t);
// Fresh memory: nobody has used it.
void fresh(const void* p, size_t bytes);

}  // namespace gt::emulated::watch
