// What a device can do besides compute: memory, copies, streams, events. One struct of function pointers, the sibling
// of the op table (kernels/ops.h). A backend exports one of each (kernels/backend.h).
#pragma once
#include <cstdint>
#include <string>

#include "kernels/core/combine.h"
#include "kernels/core/tensor.h"

namespace gt {

using Event = void*;  // opaque; nullptr on devices without asynchronous work
using Graph = void*;  // opaque; queued work that can be launched again as it was

struct DeviceApi {
  const char* name = "";

  // Device memory, at least 256-byte aligned, contents undefined. Throws gt::Error (kUsage) that says what was asked
  // and what is free. `null` returns addresses that are distinct but must never be read or written.
  void* (*alloc)(int index, int64_t bytes) = nullptr;
  void (*free)(int index, void*, int64_t bytes) = nullptr;
  // Host memory that copies to this device can run from asynchronously (pinned on CUDA).
  void* (*alloc_host)(int64_t bytes) = nullptr;
  void (*free_host)(void*, int64_t bytes) = nullptr;

  // In any direction between the host and this device, after the work already queued on the stream.
  void (*copy)(void* dst, const void* src, int64_t bytes, Stream) = nullptr;
  void (*zero)(void* dst, int64_t bytes, Stream) = nullptr;

  // `threads`: size of the rank's CPU pool; ignored by devices that have no host threads.
  Stream (*open_stream)(int index, int threads) = nullptr;
  void (*close_stream)(Stream) = nullptr;
  void (*synchronize)(Stream) = nullptr;

  Event (*make_event)(int index) = nullptr;
  void (*drop_event)(Event) = nullptr;
  void (*record)(Event, Stream) = nullptr;
  void (*wait)(Event, Stream) = nullptr;   // work queued on the stream from now on runs after the event
  void (*await)(Event) = nullptr;          // the host waits for it
  bool (*done)(Event) = nullptr;
  // Of devices that compute behind the host's back: events that keep the time (StreamClock). seconds_between: from when
  // one came to when the other did, of two that are done; at least 0.5 us are told apart.
  Event (*make_timer)(int index) = nullptr;
  double (*seconds_between)(Event from, Event to) = nullptr;

  // Graphs, of devices that have them; kernels/replay.h makes use of it. capture: `queue(what)` calls ops and `zero` on
  // this stream; none of it runs, it becomes a graph. nullptr with the reason in *why: there is none, and still nothing
  // has run. Every op must have run before with these arguments: it finds its memory and its plans there. launch: runs
  // all of it on the stream that it was captured on. A graph may be dropped when it is not running.
  Graph (*capture)(Stream, void (*queue)(void*), void* what, std::string* why) = nullptr;
  void (*launch)(Graph, Stream) = nullptr;
  void (*drop_graph)(Graph) = nullptr;

  // For ranks of one process that share the device. nullptr: it has nothing faster than the host for them.
  void (*combine)(const Combine&, Stream) = nullptr;

  int (*count)() = nullptr;                // devices of this kind on this machine
  std::string (*describe)(int index) = nullptr;  // "NVIDIA H200, 139 GiB", "AMD EPYC, avx512_bf16"
  void (*memory)(int index, int64_t* free_bytes, int64_t* total_bytes) = nullptr;
};

// Whether calls return before their work is done.
inline bool computes_behind(const DeviceApi& d) { return d.seconds_between != nullptr; }

// True when every entry is filled that every device has.
bool complete(const DeviceApi&);

}  // namespace gt
