// The device table of this backend. Refuses to know what is computed.
#pragma once
#include "kernels/core/device.h"

namespace gt::cuda {
const DeviceApi& device_api();
void* raw_stream(Stream);  // its cudaStream_t
// Entries of the table that graphs.cpp has.
Graph capture(Stream, void (*queue)(void*), void* what, std::string* why);
void launch(Graph, Stream);
void drop_graph(Graph);
void combine(const Combine&, Stream);  // combine.cu
}  // namespace gt::cuda
