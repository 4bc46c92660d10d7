// Device operations besides compute: memory, copies, streams, events. A struct of function pointers, like the op table
// (kernels/ops.h). A backend exports one of each (kernels/backend.h).
#pragma once
#include <cstdint>
#include <string>

#include "kernels/core/combine.h"
#include "kernels/core/tensor.h"

namespace gt {

using Event = void*;  // opaque; nullptr on devices without asynchronous work
using Graph = void*;  // opaque; captured work that can be launched repeatedly

struct DeviceApi {
  const char* name = "";

  // Allocates device memory, at least 256-byte aligned, contents undefined. Throws gt::Error (kUsage) naming requested
  // and free bytes. `null` returns distinct addresses that must never be accessed.
  void* (*alloc)(int index, int64_t bytes) = nullptr;
  void (*free)(int index, void*, int64_t bytes) = nullptr;
  // Host memory for asynchronous copies to and from this device (pinned on CUDA).
  void* (*alloc_host)(int64_t bytes) = nullptr;
  void (*free_host)(void*, int64_t bytes) = nullptr;

  // Copies in any direction between host and device, ordered after work already queued on the stream.
  void (*copy)(void* dst, const void* src, int64_t bytes, Stream) = nullptr;
  void (*zero)(void* dst, int64_t bytes, Stream) = nullptr;

  // `threads`: size of the rank's CPU pool; ignored by devices without host threads.
  Stream (*open_stream)(int index, int threads) = nullptr;
  void (*close_stream)(Stream) = nullptr;
  void (*synchronize)(Stream) = nullptr;

  Event (*create_event)(int index) = nullptr;
  void (*destroy_event)(Event) = nullptr;
  void (*record)(Event, Stream) = nullptr;
  void (*wait)(Event, Stream) = nullptr;  // work queued on the stream afterwards runs after the event
  void (*await)(Event) = nullptr;         // blocks the host until the event
  bool (*done)(Event) = nullptr;
  // Asynchronous devices only: timing events (StreamClock). seconds_between: elapsed time between two completed events;
  // resolution at least 0.5 us.
  Event (*make_timer)(int index) = nullptr;
  double (*seconds_between)(Event from, Event to) = nullptr;

  // Graphs, on devices that support them; used by kernels/replay.h. capture: `queue(what)` calls ops and `zero` on this
  // stream; they are captured instead of executed. Returns nullptr with the reason in *why on failure; nothing has run
  // then either. Requires: every op has run before with these arguments, so its memory and plans exist. launch: runs
  // the graph on the stream it was captured on. destroy_graph requires that the graph is not running.
  Graph (*capture)(Stream, void (*queue)(void*), void* what, std::string* why) = nullptr;
  void (*launch)(Graph, Stream) = nullptr;
  void (*destroy_graph)(Graph) = nullptr;

  // Reduction for ranks of one process that share the device. nullptr: no faster than the host.
  void (*combine)(const Combine&, Stream) = nullptr;

  int (*count)() = nullptr;                      // devices of this kind on this machine
  std::string (*describe)(int index) = nullptr;  // "NVIDIA H200, 139 GiB", "AMD EPYC, avx512_bf16"
  void (*memory)(int index, int64_t* free_bytes, int64_t* total_bytes) = nullptr;
};

// Returns whether the device is asynchronous: calls return before their work is done.
inline bool is_asynchronous(const DeviceApi& d) { return d.seconds_between != nullptr; }

// Returns whether every mandatory entry is set.
bool complete(const DeviceApi&);

}  // namespace gt
