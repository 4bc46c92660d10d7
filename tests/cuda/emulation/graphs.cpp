// Stream capture and graphs. A graph replays the captured work in order with the captured arguments. As strict as CUDA:
// another stream joins a capture by waiting for one of its events and must be joined back before the end; waiting for
// an event from outside is an error. GPTTRAIN_EMULATED_CAPTURE=spoilt: no capture succeeds, as after an illegal call;
// once: the first one of the process fails; full: graph upload runs out of device memory.
// GPTTRAIN_EMULATED_GRAPHS=FILE: statistics: graphs made and launched, with how many work items; work items queued
// individually; host waits for a stream or an event.
#include "tests/cuda/emulation/graphs.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

#include "tests/cuda/emulation/device_memory.h"

namespace gt::emulated {
namespace {

using Pieces = std::vector<std::function<void()>>;
constexpr long kPieceBytes = 10240;  // device memory of a graph per work item

struct Queue;

struct Capture {
  Queue* origin = nullptr;
  bool spoilt = false;
  Pieces kept;
  std::vector<Queue*> joined;  // all but the origin
};

struct Queue {
  std::shared_ptr<Capture> in;
  size_t tip = 0, merged = 0;  // indices into kept: after its last item; after those that others wait for
};

struct RecordedEvent {  // an event
  double reading = 0;
  std::weak_ptr<Capture> of;
  Queue* queue = nullptr;
  size_t tip = 0;
  bool captured = false;
};

thread_local Capture* captured_here = nullptr;

Queue* queue_of(cudaStream_t s) { return reinterpret_cast<Queue*>(s); }
Pieces* boxes_of(void* graph) { return static_cast<Pieces*>(graph); }
RecordedEvent& mark_of(cudaEvent_t e) { return *reinterpret_cast<RecordedEvent*>(e); }

struct Counts {
  std::atomic<long> made{0}, launched{0}, pieces{0}, single{0}, waits{0}, held{0};  // held: work items of live graphs
  ~Counts() {
    const char* file = std::getenv("GPTTRAIN_EMULATED_GRAPHS");
    if (file == nullptr) return;
    std::ofstream(file) << made << ' ' << launched << ' ' << pieces << ' ' << single << ' ' << waits << '\n';
  }
};
Counts counts;

double read_clock() {
  const OnDevice now;
  return clock_us;
}

bool capture_setting_is(const char* what) {
  const char* setting = std::getenv("GPTTRAIN_EMULATED_CAPTURE");
  return setting != nullptr && std::strcmp(setting, what) == 0;
}

bool spoilt_from_the_start() {
  static std::atomic<bool> first{true};
  return capture_setting_is("spoilt") || (capture_setting_is("once") && first.exchange(false));
}

cudaError_t spoil(Capture& c, cudaError_t why) { return c.spoilt = true, why; }

}  // namespace

bool capturing(cudaStream_t s) { return queue_of(s) != nullptr && queue_of(s)->in != nullptr; }
void keep(cudaStream_t s, std::function<void()> work) {
  Queue& q = *queue_of(s);
  q.in->kept.push_back(std::move(work));
  q.tip = q.in->kept.size();
}
void count_single() { ++counts.single; }
void count_wait() { ++counts.waits; }
long graph_bytes() { return counts.held * kPieceBytes; }
bool forbidden() {
  if (captured_here == nullptr) return false;
  return captured_here->spoilt = true;
}

}  // namespace gt::emulated

using namespace gt::emulated;

extern "C" {

// For test doubles of other libraries: records the work and returns true when the stream is being captured.
__attribute__((visibility("default"))) bool gpttrain_emulated_keep(void* stream, void (*work)(void*), void* what,
                                                                   void (*drop)(void*)) {
  const auto s = static_cast<cudaStream_t>(stream);
  if (!capturing(s)) return false;
  const std::shared_ptr<void> kept(what, drop);
  keep(s, [work, kept] { work(kept.get()); });
  return true;
}

// Reports the memory accesses of such work: a work item of its own (stream), or part of a running graph (nullptr).
__attribute__((visibility("default"))) void gpttrain_emulated_transfer(void* stream, const void* from,
                                                                       size_t from_bytes, void* to, size_t to_bytes) {
  if (stream != nullptr) watch::begin_work(static_cast<cudaStream_t>(stream));
  const OnDevice now;
  if (from != nullptr) watch::reads(from, from_bytes, "NCCL");
  if (to != nullptr) watch::writes(to, to_bytes, "NCCL");
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) {
  if (const cudaError_t e = entered(); e != cudaSuccess) return e;
  return *s = reinterpret_cast<cudaStream_t>(new Queue), cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  watch::ends(s);
  return delete queue_of(s), entered();
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
  if (const cudaError_t e = entered(); e != cudaSuccess) return e;
  return *e = reinterpret_cast<cudaEvent_t>(new RecordedEvent), cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  watch::ends(e);
  return delete &mark_of(e), entered();
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  if (const cudaError_t broken = entered(); broken != cudaSuccess) return broken;
  RecordedEvent& m = mark_of(e);
  m.captured = capturing(s);
  if (!m.captured && forbidden()) return cudaErrorStreamCaptureUnsupported;
  if (!m.captured) return watch::record(e, s), m.reading = read_clock(), cudaSuccess;
  Queue& q = *queue_of(s);
  m.of = q.in, m.queue = &q, m.tip = q.tip;
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  if (const cudaError_t e = entered(); e != cudaSuccess) return e;
  RecordedEvent& m = mark_of(e);
  Queue& q = *queue_of(s);
  if (!m.captured) {
    if (q.in != nullptr) return spoil(*q.in, cudaErrorStreamCaptureIsolation);
    if (forbidden()) return cudaErrorStreamCaptureUnsupported;
    return watch::wait(s, e), cudaSuccess;
  }
  const std::shared_ptr<Capture> of = m.of.lock();
  if (of == nullptr) return cudaErrorInvalidValue;  // recorded in a capture that has ended
  if (q.in != nullptr && q.in != of) return spoil(*q.in, cudaErrorStreamCaptureMerge);
  if (q.in == nullptr) {
    q.in = of;
    q.tip = q.merged = 0;
    of->joined.push_back(&q);
  }
  if (m.queue != &q && m.queue->merged < m.tip) m.queue->merged = m.tip;
  q.tip = of->kept.size();
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ++counts.waits;
  if (const cudaError_t e = entered(); e != cudaSuccess) return e;
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  return watch::host_waits(event), cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t a, cudaEvent_t b) {
  if (const cudaError_t e = entered(); e != cudaSuccess) return e;
  return *ms = static_cast<float>((mark_of(b).reading - mark_of(a).reading) / 1e3), cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
  if (const cudaError_t e = entered(); e != cudaSuccess) return e;
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  if (mark_of(e).captured) return cudaErrorCapturedEvent;
  return watch::host_waits(e), cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode) {
  if (const cudaError_t e = entered(); e != cudaSuccess) return e;
  Queue& q = *queue_of(s);
  if (mode != cudaStreamCaptureModeThreadLocal || q.in != nullptr || captured_here != nullptr)
    return cudaErrorIllegalState;
  q.in = std::make_shared<Capture>();
  q.in->origin = &q;
  q.in->spoilt = spoilt_from_the_start();
  q.tip = q.merged = 0;
  captured_here = q.in.get();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* graph) {
  Queue& q = *queue_of(s);
  *graph = nullptr;
  if (q.in == nullptr || q.in.get() != captured_here || q.in->origin != &q) return cudaErrorStreamCaptureWrongThread;
  captured_here = nullptr;
  const std::shared_ptr<Capture> over = std::exchange(q.in, nullptr);
  bool away = false;
  for (Queue* other : over->joined) {
    away = away || other->merged < other->tip;
    other->in = nullptr;
  }
  if (over->spoilt) return cudaErrorStreamCaptureInvalidated;
  if (away) return cudaErrorStreamCaptureUnjoined;
  *graph = reinterpret_cast<cudaGraph_t>(new Pieces(std::move(over->kept)));
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* status) {
  *status = capturing(s) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  if (const cudaError_t e = entered(); e != cudaSuccess) return e;
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  *made = reinterpret_cast<cudaGraphExec_t>(new Pieces(*boxes_of(graph)));
  ++counts.made;
  counts.held += static_cast<long>(boxes_of(graph)->size());
  return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  if (const cudaError_t e = entered(); e != cudaSuccess) return e;
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  return capture_setting_is("full") ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t s) {
  if (const cudaError_t e = entered(); e != cudaSuccess) return e;
  if (forbidden()) return cudaErrorStreamCaptureUnsupported;
  ++counts.launched;
  for (const auto& work : *boxes_of(graph)) {
    watch::begin_work(s);
    work();
    ++counts.pieces;
  }
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete boxes_of(graph), cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  counts.held -= static_cast<long>(boxes_of(graph)->size());
  return delete boxes_of(graph), cudaSuccess;
}

}  // extern "C"
