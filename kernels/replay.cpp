#include "kernels/replay.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "kernels/core/fields.h"

namespace gt {
namespace {

constexpr int kMostStrikes = 3;
constexpr size_t kLeastCalls = 2;  // a graph of one call is no faster than the call
constexpr size_t kAlignment = alignof(std::max_align_t);

const Backend* behind = nullptr;            // the recorder; set before any recording is created
thread_local Recording* running = nullptr;  // active on this thread: a rank computes on one thread
std::atomic<uint64_t> runs{0};

// Recorded form of a call's arguments. The version of a weight is dropped: it only signals that its bytes may have
// changed, and backends with graphs read weights in place.
template <class Args>
const Args& kept(const Args& a) {
  return a;
}
Gemm kept(Gemm g) {
  g.b_version = 0;
  return g;
}

struct Zero {
  void* to;
  int64_t bytes;
};

}  // namespace

struct Recording::Kind {
  const char* name;
  size_t bytes;
  void (*keep)(std::byte* to, const void* args);
  bool (*same)(const std::byte* recorded, const void* args);
  void (*make)(const std::byte* recorded, const Backend&, Stream);
};

// Op and device tables of the recorder.
struct RecordingBackend {
  // Side call: executed by its own library.
  static constexpr Recording::Kind kSide{
      "collective", sizeof(SideCall), [](std::byte* to, const void* args) { std::memcpy(to, args, sizeof(SideCall)); },
      [](const std::byte* recorded, const void* args) { return std::memcmp(recorded, args, sizeof(SideCall)) == 0; },
      nullptr};

  template <class Args>
  static void keep(std::byte* to, const void* args) {
    static_assert(std::is_trivially_copyable_v<Args> && alignof(Args) <= kAlignment);
    new (to) Args(kept(*static_cast<const Args*>(args)));
  }
  template <class Args>
  static bool same(const std::byte* recorded, const void* args) {
    return same_bits(*reinterpret_cast<const Args*>(recorded), Args(kept(*static_cast<const Args*>(args))));
  }

  template <class Args, Kernel<Args> OpTable::*kEntry>
  struct Op {
    static constexpr void make(const std::byte* recorded, const Backend& b, Stream s) {
      (b.ops->*kEntry)(*reinterpret_cast<const Args*>(recorded), s);
    }
    static void call(const Recording::Kind& kind, const Args& a, Stream s) {
      if (running != nullptr && held(kind, &a, s)) return;
      (behind->ops->*kEntry)(a, s);
    }
  };

  static bool held(const Recording::Kind& kind, const void* args, Stream s) {
    if (s.native == running->stream_.native) return running->holds_back(kind, args);
    running->cut();  // another stream, which may wait for this one
    return false;
  }
  // Called before anything that a graph cannot contain.
  static void cut() {
    if (running != nullptr) running->cut();
  }

  // For calls made by destructors, possibly during unwinding: an exception is stored and rethrown at the end.
  static void cut_kept() {
    Recording* r = running;
    try {
      cut();
    } catch (const std::exception&) { r->unfinished_ = std::current_exception(); }
  }

  static OpTable ops() {
    OpTable t{.name = behind->ops->name};
#define X(entry, Args, ...)                                                                           \
  t.entry = [](const Args& a, Stream s) {                                                             \
    using Call = Op<Args, &OpTable::entry>;                                                           \
    static constexpr Recording::Kind kKind{#entry, sizeof(Args), keep<Args>, same<Args>, Call::make}; \
    Call::call(kKind, a, s);                                                                          \
  };
    GT_OPS(X)
#undef X
    return t;
  }

  static void zero(void* to, int64_t bytes, Stream s) {
    static constexpr Recording::Kind kKind{"zero", sizeof(Zero), keep<Zero>, same<Zero>,
                                           [](const std::byte* recorded, const Backend& b, Stream on) {
                                             const auto& z = *reinterpret_cast<const Zero*>(recorded);
                                             b.device->zero(z.to, z.bytes, on);
                                           }};
    const Zero args{to, bytes};
    if (running != nullptr && held(kKind, &args, s)) return;
    behind->device->zero(to, bytes, s);
  }

  static DeviceApi device() {
    DeviceApi d = *behind->device;
    d.zero = zero;
    d.free = [](int index, void* p, int64_t bytes) { cut_kept(), behind->device->free(index, p, bytes); };
    d.free_host = [](void* p, int64_t bytes) { cut_kept(), behind->device->free_host(p, bytes); };
    d.copy = [](void* to, const void* from, int64_t bytes, Stream s) {
      cut(), behind->device->copy(to, from, bytes, s);
    };
    d.synchronize = [](Stream s) { cut(), behind->device->synchronize(s); };
    d.record = [](Event e, Stream s) { cut(), behind->device->record(e, s); };
    d.wait = [](Event e, Stream s) { cut(), behind->device->wait(e, s); };
    d.await = [](Event e) { cut(), behind->device->await(e); };
    if (d.combine != nullptr) d.combine = [](const Combine& c, Stream s) { cut(), behind->device->combine(c, s); };
    return d;
  }
  static void* raw_stream(Stream s) {
    cut();
    return behind->raw_stream(s);
  }
};

const Backend& replayable(const Backend& inner) {
  GT_CHECK(inner.device->capture != nullptr, inner.device->name, " devices have no graphs");
  static const struct Made {
    OpTable ops;
    DeviceApi device;
    Backend recorder;
    explicit Made(const Backend& b) {
      behind = &b;
      ops = RecordingBackend::ops(), device = RecordingBackend::device(), recorder = b;
      recorder.ops = &ops, recorder.device = &device, recorder.replays = true;
      if (b.raw_stream != nullptr) recorder.raw_stream = RecordingBackend::raw_stream;
    }
  } made(inner);
  GT_CHECK(behind == &inner, "one backend a process can be replayed");
  return made.recorder;
}

void ReplayCounts::add(const ReplayCounts& more) {
  first += more.first, replayed += more.replayed, eager += more.eager;
  if (!more.why.empty()) why = more.why;
}

Recording::Recording(const Backend& recorder, Stream s) : inner_(*behind), stream_(s) {
  GT_CHECK(recorder.replays && behind != nullptr, "recordings are of a backend that replayable() made");
}

Recording::~Recording() { clear_noexcept(); }

void Recording::begin() {
  GT_CHECK(running == nullptr, "a recording runs inside another");
  next_ = queued_ = segment_ = segment_begin_ = 0;
  if (strikes_ >= kMostStrikes) return;
  why_.clear();
  running = this;
  run_ = ++runs;
}

void Recording::end(ReplayCounts& counts) {
  if (unfinished_) abandon(nullptr);
  if (running == this && recorded_ && next_ < calls_.size()) leave(cat("no ", calls_[next_].kind->name, " followed"));
  if (running != this) {
    ++counts.eager;
    counts.why = why_;
    if (recorded_) clear();  // the next run records again
    return;
  }
  running = nullptr;
  if (recorded_) return static_cast<void>(++counts.replayed);
  cut();
  recorded_ = true;
  ++counts.first;
}

// Ends a run after an exception and rethrows it (the first of two). Held-back calls are dropped.
void Recording::abandon(std::exception_ptr why) {
  running = nullptr;
  if (unfinished_) why = std::exchange(unfinished_, nullptr);
  clear_noexcept();
  std::rethrow_exception(why);
}

bool Recording::holds_back(const Kind& kind, const void* args) {
  if (!recorded_) return record(kind, args), false;
  if (next_ == calls_.size()) return leave(cat("one ", kind.name, " more")), false;
  const Call& c = calls_[next_];
  if (c.kind != &kind) return leave(cat(kind.name, " where ", c.kind->name, " was")), false;
  if (!kind.same(args_.data() + c.at, args)) return leave(cat(kind.name, " with other arguments")), false;
  GraphSegment& s = segments_[segment_];
  if (++next_ == s.end) launch(s);
  return true;
}

Recording::Answer Recording::side_call(const SideCall& call, Stream s) {
  Recording* r = running;
  if (r == nullptr) return {};
  if (s.native != r->stream_.native) return r->cut(), Answer{};
  GT_CHECK(r->sides_ == nullptr || r->sides_ == call.of, "calls of two libraries in one recording");
  r->sides_ = call.of;
  const size_t number = r->recorded_ ? r->next_ : r->calls_.size();
  if (r->holds_back(RecordingBackend::kSide, &call)) return {Fate::kHeldBack, r->run_, number};
  return running == nullptr ? Answer{} : Answer{Fate::kRecorded, r->run_, number};
}

uint64_t Recording::current_run() { return running != nullptr ? running->run_ : 0; }

Recording::Bypass::Bypass() : before_(std::exchange(running, nullptr)) {}
Recording::Bypass::~Bypass() { running = before_; }

HeldGraphs Recording::held() const {
  HeldGraphs h;
  for (const GraphSegment& s : segments_)
    if (s.graph != nullptr) h.add({1, static_cast<int64_t>(s.end - s.begin), s.bytes});
  return h;
}

void Recording::record(const Kind& kind, const void* args) {
  const size_t at = (args_.size() + kAlignment - 1) / kAlignment * kAlignment;
  args_.resize(at + kind.bytes);
  kind.keep(args_.data() + at, args);
  calls_.push_back({&kind, at});
}

void Recording::cut() {
  if (recorded_) {
    if (queued_ < next_) leave("a copy, an event or a wait inside a graph segment");
    return;
  }
  if (segment_begin_ < calls_.size()) segments_.push_back({segment_begin_, calls_.size(), nullptr, 0, {}});
  segment_begin_ = calls_.size();
}

void Recording::launch(GraphSegment& s) {
  ++segment_;
  queued_ = s.end;
  const bool fresh = s.graph == nullptr;
  int64_t before = 0, after = 0, total = 0;
  if (fresh && !capture(s, &before)) return;
  if (!s.sides.empty()) sides_->settle(s.sides, stream_);
  inner_.device->launch(s.graph, stream_);
  if (!s.sides.empty()) sides_->launched(s.sides, stream_);
  if (!fresh) return;
  inner_.device->memory(stream_.device.index, &after, &total);
  s.bytes = std::max<int64_t>(0, before - after);  // also counts other allocations made meanwhile on this device
}

// Captures a segment in its second run. Returns false if its calls were queued one by one instead. Whether collectives
// are captured is agreed by all participating ranks: such a segment becomes a graph on all of them or on none.
// *free_bytes: free device memory before.
bool Recording::capture(GraphSegment& s, int64_t* free_bytes) {
  for (size_t i = s.begin; i < s.end; ++i)
    if (calls_[i].kind == &RecordingBackend::kSide) s.sides.push_back(side_at(i));
  if (s.sides.empty() && s.end - s.begin < kLeastCalls) return queue(s.begin, s.end, false), false;
  int64_t total = 0;
  inner_.device->memory(stream_.device.index, free_bytes, &total);
  if (!s.sides.empty()) sides_->settle(s.sides, stream_);
  std::string why;
  s.graph = graph_of(s.begin, s.end, &why);
  const bool good = s.graph != nullptr;
  if (!s.sides.empty() && !sides_->agree(s.sides, good) && good) {
    inner_.device->destroy_graph(std::exchange(s.graph, nullptr));
    why = "another rank could make none";
  }
  if (s.graph != nullptr) return true;
  // Work that a failed capture left open must not enter the next one.
  if (!s.sides.empty()) sides_->settle(s.sides, stream_);
  if (!good) why = named(s, why);
  queue(s.begin, s.end, false);
  leave(cat("no graph could be made: ", why));
  strikes_ = kMostStrikes;  // the next attempt would fail too
  return false;
}

// Identifies the call that cannot be captured: the first that fails alone, if an empty graph can be created.
std::string Recording::named(const GraphSegment& s, const std::string& why) const {
  const auto alone = [&](size_t begin, size_t end, std::string* text) {
    const Graph g = graph_of(begin, end, text);
    if (g != nullptr) inner_.device->destroy_graph(g);
    return g != nullptr;
  };
  std::string text;
  if (alone(s.begin, s.begin, &text))
    for (size_t i = s.begin; i < s.end; ++i)
      if (calls_[i].kind != &RecordingBackend::kSide && !alone(i, i + 1, &text))
        return cat(calls_[i].kind->name, ": ", text);
  return why;
}

Graph Recording::graph_of(size_t begin, size_t end, std::string* why) const {
  struct Piece {
    const Recording* of;
    size_t begin, end;
  } piece{this, begin, end};
  return inner_.device->capture(
      stream_,
      [](void* p) {
        const auto& piece = *static_cast<Piece*>(p);
        piece.of->queue(piece.begin, piece.end, true);
      },
      &piece, why);
}

void Recording::queue(size_t begin, size_t end, bool captured) const {
  for (size_t i = begin; i < end; ++i) {
    const Call& c = calls_[i];
    if (c.kind == &RecordingBackend::kSide)
      sides_->make(side_at(i), i, stream_, captured);
    else
      c.kind->make(args_.data() + c.at, inner_, stream_);
  }
  if (sides_ != nullptr && begin < end) sides_->close(stream_, captured);
}

const SideCall& Recording::side_at(size_t call) const {
  return *reinterpret_cast<const SideCall*>(args_.data() + calls_[call].at);
}

// The current run deviates from the recorded one: holds nothing more back.
void Recording::leave(std::string why) {
  running = nullptr;
  why_ = std::move(why);
  ++strikes_;
  const size_t from = std::exchange(queued_, next_);
  queue(from, next_, false);
}

// clear() where an exception is in flight, or must not be thrown.
void Recording::clear_noexcept() {
  try {
    clear();
  } catch (const std::exception&) {}  // the device is lost, and its graphs with it
}

void Recording::clear() {
  bool any = false;
  for (const GraphSegment& s : segments_) any = any || s.graph != nullptr;
  if (any) inner_.device->synchronize(stream_);
  for (const GraphSegment& s : segments_)
    if (s.graph != nullptr) inner_.device->destroy_graph(s.graph);
  segments_.clear();
  calls_.clear();
  args_.clear();
  recorded_ = false;
}

}  // namespace gt
