#include "tests/cuda/emulation/watch.h"

namespace gt::emulated::watch {

void begin_work(cudaStream_t) {}
void reads(const void*, size_t, const char*) {}
void writes(const void*, size_t, const char*) {}
void kernel_begins(const void*, size_t) {}
void block_begins() {}
void thread_runs(size_t, const void*, size_t) {}
void block_meets() {}
void warp_meets(size_t) {}
void kernel_ends() {}
void atomic(const void*, size_t, const void*) {}
void copies(const void*, const void*, size_t) {}
void record(cudaEvent_t, cudaStream_t) {}
void wait(cudaStream_t, cudaEvent_t) {}
void host_waits(cudaEvent_t) {}
void host_waits(cudaStream_t) {}
void host_waits_for_all() {}
void ends(cudaStream_t) {}
void ends(cudaEvent_t) {}
void fresh(const void*, size_t) {}

}  // namespace gt::emulated::watch
