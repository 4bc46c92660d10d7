// The DeviceApi table of this backend. Independent of ops.
#pragma once
#include "kernels/core/device.h"

namespace gt::cuda {
// Returns the table; static storage.
const DeviceApi& device_api();
// Returns the stream's cudaStream_t.
void* raw_stream(Stream);
// DeviceApi entries implemented in graphs.cpp.
Graph capture(Stream, void (*queue)(void*), void* what, std::string* why);
void launch(Graph, Stream);
void destroy_graph(Graph);
void combine(const Combine&, Stream);  // combine.cu
}  // namespace gt::cuda
