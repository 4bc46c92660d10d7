// Stream capture and graphs. A graph does again what was captured, with the arguments of then. Stricter than CUDA:
// events take no part in a capture. GPTTRAIN_EMULATED_CAPTURE=spoilt: no capture succeeds, as after a call that is not
// allowed. GPTTRAIN_EMULATED_GRAPHS=FILE: how many graphs were made, launched, and of how many pieces of work.
#include "kernels/cuda/emulation/graphs.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

namespace gt::emulated {
namespace {

using Pieces = std::vector<std::function<void()>>;

struct Queue {
  bool capturing = false, spoilt = false;
  Pieces kept;
};

thread_local Queue* captured_here = nullptr;

Queue* queue_of(cudaStream_t s) { return reinterpret_cast<Queue*>(s); }
Pieces* pieces_of(void* graph) { return static_cast<Pieces*>(graph); }

struct Counts {
  std::atomic<long> made{0}, launched{0}, pieces{0};
  ~Counts() {
    const char* file = std::getenv("GPTTRAIN_EMULATED_GRAPHS");
    if (file != nullptr) std::ofstream(file) << made << ' ' << launched << ' ' << pieces << '\n';
  }
};
Counts counts;

}  // namespace

bool capturing(cudaStream_t s) { return queue_of(s) != nullptr && queue_of(s)->capturing; }
void keep(cudaStream_t s, std::function<void()> work) { queue_of(s)->kept.push_back(std::move(work)); }
bool forbidden() {
  if (captured_here == nullptr) return false;
  return captured_here->spoilt = true;
}

}  // namespace gt::emulated

using namespace gt::emulated;

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) {
  return *s = reinterpret_cast<cudaStream_t>(new Queue), cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) { return delete queue_of(s), cudaSuccess; }

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode) {
  Queue& q = *queue_of(s);
  if (mode != cudaStreamCaptureModeThreadLocal || q.capturing || captured_here != nullptr) return cudaErrorIllegalState;
  const char* wanted = std::getenv("GPTTRAIN_EMULATED_CAPTURE");
  q.capturing = true;
  q.spoilt = wanted != nullptr && std::strcmp(wanted, "spoilt") == 0;
  captured_here = &q;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* graph) {
  Queue& q = *queue_of(s);
  *graph = nullptr;
  if (&q != captured_here) return cudaErrorStreamCaptureWrongThread;
  captured_here = nullptr;
  q.capturing = false;
  Pieces kept = std::exchange(q.kept, {});
  if (q.spoilt) return cudaErrorStreamCaptureInvalidated;
  *graph = reinterpret_cast<cudaGraph_t>(new Pieces(std::move(kept)));
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* status) {
  *status = capturing(s) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  *made = reinterpret_cast<cudaGraphExec_t>(new Pieces(*pieces_of(graph)));
  ++counts.made;
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t) {
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  ++counts.launched;
  for (const auto& piece : *pieces_of(graph)) {
    piece();
    ++counts.pieces;
  }
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete pieces_of(graph), cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return delete pieces_of(graph), cudaSuccess; }

}  // extern "C"
