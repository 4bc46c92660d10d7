// Emulated streams and capture: captured launches, copies and GEMMs are recorded with their arguments instead of
// executed.
#pragma once
#include <cuda_runtime_api.h>

#include <functional>
#include <utility>

#include "tests/cuda/emulation/health.h"
#include "tests/cuda/emulation/watch.h"

namespace gt::emulated {

// Whether launches on this stream are being captured.
bool capturing(cudaStream_t);
// Records work for the graph. Requires: capturing().
void keep(cudaStream_t, std::function<void()> work);
void count_single();  // work executed immediately
void count_wait();    // of the host for a stream or an event
long graph_bytes();   // device memory of all live graphs

// Executes work now, or records it for the graph being captured.
template <class Work>
cudaError_t queue(cudaStream_t s, Work work) {
  if (const cudaError_t e = entered(); e != cudaSuccess) return e;
  if (capturing(s)) return keep(s, std::move(work)), cudaSuccess;
  count_single();
  watch::begin_work(s);
  return work(), cudaSuccess;
}

// Returns true while this thread captures a stream: the calling function is illegal then, and the capture becomes
// invalid.
bool forbidden();

}  // namespace gt::emulated
