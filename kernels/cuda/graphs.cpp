// CUDA graphs of queued ops: captured once, launched any number of times.
#include <cuda_runtime_api.h>

#include "kernels/cuda/context.h"
#include "kernels/cuda/device.h"

namespace gt::cuda {

namespace {

std::string text_of(cudaError_t status) { return cat(cudaGetErrorName(status), ": ", cudaGetErrorString(status)); }

// Captures the work that `queue` queues; returns nullptr and the reason in *why on failure. Always ends the capture and
// leaves no error for the next launch.
cudaGraph_t captured(cudaStream_t stream, void (*queue)(void*), void* what, std::string* why) {
  // Thread-local capture mode: ranks running as other threads may allocate and synchronize meanwhile; this thread
  // cannot by mistake.
  if (const cudaError_t status = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
      status != cudaSuccess) {
    cudaGetLastError();
    return *why = text_of(status), nullptr;
  }
  why->clear();
  try {
    queue(what);
  } catch (const std::exception& e) { *why = e.what(); }
  cudaGraph_t graph = nullptr;
  const cudaError_t status = cudaStreamEndCapture(stream, &graph);
  if (status == cudaSuccess && why->empty()) return graph;
  if (why->empty()) *why = text_of(status);
  if (graph != nullptr) cudaGraphDestroy(graph);
  cudaGetLastError();
  return nullptr;
}

}  // namespace

Graph capture(Stream s, void (*queue)(void*), void* what, std::string* why) {
  Context& c = enter(s, "capture");
  if (c.sync_each_op) return *why = "GPTTRAIN_CUDA_SYNC=1 waits after every op", nullptr;
  cudaGraph_t graph = captured(c.stream, queue, what, why);
  if (graph == nullptr) return nullptr;
  cudaGraphExec_t made = nullptr;
  cudaError_t status = cudaGraphInstantiate(&made, graph, 0);
  cudaGraphDestroy(graph);
  if (status == cudaSuccess) {
    // Allocates the first launch's memory now, while the work can still be queued without a graph.
    status = cudaGraphUpload(made, c.stream);
    if (status == cudaSuccess) return made;
    cudaGraphExecDestroy(made);
  }
  cudaGetLastError();
  return *why = text_of(status), nullptr;
}

void launch(Graph g, Stream s) {
  Context& c = enter(s, "graph");
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(g), c.stream), "launching a graph");
  leave(c, "graph");
}

void destroy_graph(Graph g) { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(g)); }

}  // namespace gt::cuda
