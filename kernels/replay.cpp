#include "kernels/replay.h"

#include <cstddef>
#include <new>
#include <utility>

#include "kernels/core/fields.h"

namespace gt {
namespace {

constexpr int kMostStrikes = 3;
constexpr size_t kLeastCalls = 2;  // a graph of one call would not be faster than the call
constexpr size_t kAlignment = alignof(std::max_align_t);

const Backend* behind = nullptr;            // the twin; set before any recording is made
thread_local Recording* running = nullptr;  // of this thread: a rank computes on one

// As a call is kept. The version of a weight only says that its bytes may have changed, which graphs need not know:
// backends with graphs read weights where they are.
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
  bool (*same)(const std::byte* noted, const void* args);
  void (*make)(const std::byte* noted, const Backend&, Stream);
};

// The tables of the twin.
struct Twin {
  template <class Args>
  static void keep(std::byte* to, const void* args) {
    static_assert(std::is_trivially_copyable_v<Args> && alignof(Args) <= kAlignment);
    new (to) Args(kept(*static_cast<const Args*>(args)));
  }
  template <class Args>
  static bool same(const std::byte* noted, const void* args) {
    return same_bits(*reinterpret_cast<const Args*>(noted), Args(kept(*static_cast<const Args*>(args))));
  }

  template <class Args, Kernel<Args> OpTable::*kEntry>
  struct Op {
    static constexpr void make(const std::byte* noted, const Backend& b, Stream s) {
      (b.ops->*kEntry)(*reinterpret_cast<const Args*>(noted), s);
    }
    static void call(const Recording::Kind& kind, const Args& a, Stream s) {
      if (running != nullptr && held(kind, &a, s)) return;
      (behind->ops->*kEntry)(a, s);
    }
  };

  static bool held(const Recording::Kind& kind, const void* args, Stream s) {
    if (s.native == running->stream_.native) return running->holds_back(kind, args);
    running->cut();  // of another stream, which may wait for this one
    return false;
  }
  // Before whatever no graph can hold.
  static void cut() {
    if (running != nullptr) running->cut();
  }

  static OpTable ops() {
    OpTable t{.name = behind->ops->name};
#define X(entry, Args, amp)                                                                           \
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
                                           [](const std::byte* noted, const Backend& b, Stream on) {
                                             const auto& z = *reinterpret_cast<const Zero*>(noted);
                                             b.device->zero(z.to, z.bytes, on);
                                           }};
    const Zero args{to, bytes};
    if (running != nullptr && held(kKind, &args, s)) return;
    behind->device->zero(to, bytes, s);
  }

  static DeviceApi device() {
    DeviceApi d = *behind->device;
    d.zero = zero;
    d.free = [](int index, void* p, int64_t bytes) { cut(), behind->device->free(index, p, bytes); };
    d.free_host = [](void* p, int64_t bytes) { cut(), behind->device->free_host(p, bytes); };
    d.copy = [](void* to, const void* from, int64_t bytes, Stream s) {
      cut(), behind->device->copy(to, from, bytes, s);
    };
    d.synchronize = [](Stream s) { cut(), behind->device->synchronize(s); };
    d.record = [](Event e, Stream s) { cut(), behind->device->record(e, s); };
    d.wait = [](Event e, Stream s) { cut(), behind->device->wait(e, s); };
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
    Backend twin;
    explicit Made(const Backend& b) {
      behind = &b;
      ops = Twin::ops(), device = Twin::device(), twin = b;
      twin.ops = &ops, twin.device = &device, twin.replays = true;
      if (b.raw_stream != nullptr) twin.raw_stream = Twin::raw_stream;
    }
  } made(inner);
  GT_CHECK(behind == &inner, "one backend a process can be replayed");
  return made.twin;
}

void ReplayCounts::add(const ReplayCounts& more) {
  first += more.first, replayed += more.replayed, eager += more.eager;
  if (!more.why.empty()) why = more.why;
}

Recording::Recording(const Backend& twin, Stream s) : inner_(*behind), stream_(s) {
  GT_CHECK(twin.replays && behind != nullptr, "recordings are of a backend that replayable() made");
}

Recording::~Recording() {
  try {
    forget();
  } catch (const std::exception&) {  // the device is gone, and its graphs with it
  }
}

void Recording::begin() {
  GT_CHECK(running == nullptr, "a recording runs inside another");
  next_ = queued_ = stretch_ = noted_from_ = 0;
  if (strikes_ >= kMostStrikes) return;
  why_.clear();
  running = this;
}

void Recording::end(ReplayCounts& counts) {
  if (running == this && noted_ && next_ < calls_.size()) leave(cat("no ", calls_[next_].kind->name, " followed"));
  if (running != this) {
    ++counts.eager;
    counts.why = why_;
    if (noted_) forget();  // the next time is a first one
    return;
  }
  running = nullptr;
  if (noted_) return static_cast<void>(++counts.replayed);
  cut();
  noted_ = true;
  ++counts.first;
}

// After an exception: what was held back is not missed.
void Recording::abandon() {
  running = nullptr;
  forget();
}

bool Recording::holds_back(const Kind& kind, const void* args) {
  if (!noted_) return note(kind, args), false;
  if (next_ == calls_.size()) return leave(cat("one ", kind.name, " more")), false;
  const Call& c = calls_[next_];
  if (c.kind != &kind) return leave(cat(kind.name, " where ", c.kind->name, " was")), false;
  if (!kind.same(args_.data() + c.at, args)) return leave(cat(kind.name, " with other arguments")), false;
  Stretch& s = stretches_[stretch_];
  if (++next_ == s.end) launch(s);
  return true;
}

void Recording::note(const Kind& kind, const void* args) {
  const size_t at = (args_.size() + kAlignment - 1) / kAlignment * kAlignment;
  args_.resize(at + kind.bytes);
  kind.keep(args_.data() + at, args);
  calls_.push_back({&kind, at});
}

void Recording::cut() {
  if (noted_) {
    if (queued_ < next_) leave("a copy, an event or a wait in the middle of a graph");
    return;
  }
  if (noted_from_ < calls_.size()) stretches_.push_back({noted_from_, calls_.size(), nullptr});
  noted_from_ = calls_.size();
}

void Recording::launch(Stretch& s) {
  ++stretch_;
  queued_ = s.end;
  if (s.end - s.begin < kLeastCalls) return queue(s.begin, s.end);
  if (s.graph == nullptr) {
    struct Piece {
      const Recording* of;
      const Stretch* stretch;
    } piece{this, &s};
    std::string why;
    s.graph = inner_.device->capture(
        stream_,
        [](void* p) {
          static_cast<Piece*>(p)->of->queue(static_cast<Piece*>(p)->stretch->begin,
                                            static_cast<Piece*>(p)->stretch->end);
        },
        &piece, &why);
    if (s.graph == nullptr) {
      queue(s.begin, s.end);
      leave(cat("no graph could be made: ", why));
      strikes_ = kMostStrikes;  // nor could it the next time
      return;
    }
  }
  inner_.device->launch(s.graph, stream_);
}

void Recording::queue(size_t begin, size_t end) const {
  for (size_t i = begin; i < end; ++i) calls_[i].kind->make(args_.data() + calls_[i].at, inner_, stream_);
}

// The running work goes another way than the one that was noted: nothing more is held back.
void Recording::leave(std::string why) {
  running = nullptr;
  why_ = std::move(why);
  ++strikes_;
  const size_t from = std::exchange(queued_, next_);
  queue(from, next_);
}

void Recording::forget() {
  bool any = false;
  for (const Stretch& s : stretches_) any = any || s.graph != nullptr;
  if (any) inner_.device->synchronize(stream_);
  for (const Stretch& s : stretches_)
    if (s.graph != nullptr) inner_.device->drop_graph(s.graph);
  stretches_.clear();
  calls_.clear();
  args_.clear();
  noted_ = false;
}

}  // namespace gt
