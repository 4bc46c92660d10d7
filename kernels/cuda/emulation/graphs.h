// Streams of the emulation and what capturing one means: launches, copies and products are kept, with their arguments
// as they were, instead of being done.
#pragma once
#include <cuda_runtime_api.h>

#include <functional>
#include <utility>

#include "kernels/cuda/emulation/health.h"
#include "kernels/cuda/emulation/watch.h"

namespace gt::emulated {

bool capturing(cudaStream_t);
void keep(cudaStream_t, std::function<void()> work);
void count_single();  // work that is done at once
void count_wait();    // of the host for a stream
long graph_bytes();   // of device memory, that all graphs take

// Does it now, or keeps it for the graph.
template <class Work>
cudaError_t queue(cudaStream_t s, Work work) {
  if (const cudaError_t e = entered(); e != cudaSuccess) return e;
  if (capturing(s)) return keep(s, std::move(work)), cudaSuccess;
  count_single();
  watch::piece(s);
  return work(), cudaSuccess;
}

// True when this thread captures a stream: the call that asks is none that may be made then, and the capture is spoilt.
bool forbidden();

}  // namespace gt::emulated
