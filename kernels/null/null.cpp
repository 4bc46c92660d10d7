#include "kernels/null/null.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "kernels/core/memory.h"
#include "kernels/null/gemm_log.h"

namespace gt::null {
namespace {

thread_local GemmLog* gemm_log = nullptr;

template <class Args>
void nothing(const Args&, Stream) {}
template <>
void nothing(const Gemm& g, Stream) {
  if (gemm_log != nullptr && g.b_version > 0) gemm_log->add(g);
}
template <>
void nothing(const AttentionGrad& a, Stream) {
  if (gemm_log != nullptr) gemm_log->add(a);
}

constexpr OpTable kOps{.name = "null",
#define X(entry, Args, ...) .entry = nothing<Args>,
                       GT_OPS(X)
#undef X
};
GT_COMPLETE_TABLE(kOps);

// Addresses outside any process: non-canonical on x86-64, above user space elsewhere. Distinct while in use, and any
// access faults. Nothing is reserved, so address space limits (`ulimit -v`) do not apply.
class Addresses {
 public:
  void* take(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    GT_CHECK(bytes >= 0 && bytes <= kEnd - next_, "requested ", bytes, " bytes of ", kEnd - next_);
    const int64_t at = next_;
    next_ += std::max(align_up(bytes), kAlign);
    ++live_;
    return reinterpret_cast<void*>(at);  // NOLINT(performance-no-int-to-ptr)
  }
  void give_back() {
    const std::lock_guard lock(mutex_);
    if (--live_ == 0) next_ = kBegin;
  }

 private:
  static constexpr int64_t kBegin = int64_t{1} << 60, kEnd = INT64_MAX - kAlign;
  std::mutex mutex_;
  int64_t next_ = kBegin, live_ = 0;
};

Addresses& addresses() {
  static Addresses all;
  return all;
}

void* alloc(int, int64_t bytes) { return addresses().take(bytes); }
void release(int, void* p, int64_t) {
  if (p != nullptr) addresses().give_back();
}

// Host memory is real: callers write batches and scalars into it.
void* alloc_host(int64_t bytes) {
  void* p = std::aligned_alloc(kAlign, static_cast<size_t>(std::max(align_up(bytes), kAlign)));
  GT_REQUIRE(p != nullptr, Exit::kUsage, "host memory: requested ", bytes, " bytes");
  return p;
}
void free_host(void* p, int64_t) { std::free(p); }

void copy(void*, const void*, int64_t, Stream) {}
void zero(void*, int64_t, Stream) {}
Stream open_stream(int index, int) { return {{DeviceKind::kNull, static_cast<int8_t>(index)}, nullptr}; }
void close_stream(Stream) {}
void synchronize(Stream) {}
Event create_event(int) { return nullptr; }
void destroy_event(Event) {}
void record(Event, Stream) {}
void wait(Event, Stream) {}
void await(Event) {}
bool done(Event) { return true; }
int count() { return 1; }
std::string describe(int) { return "null device: computes nothing, has no memory"; }
void memory(int, int64_t* free_bytes, int64_t* total_bytes) {
  if (free_bytes != nullptr) *free_bytes = int64_t{1} << 46;
  if (total_bytes != nullptr) *total_bytes = int64_t{1} << 46;
}

}  // namespace

GemmLog::GemmLog() : before_(std::exchange(gemm_log, this)) {}
GemmLog::~GemmLog() { gemm_log = before_; }

void GemmLog::add(const Gemm& g) {
  const auto same = [&](const Gemm& o) {
    return o.b.data == g.b.data && o.b.shape == g.b.shape && o.trans_b == g.trans_b && o.b.dtype == g.b.dtype;
  };
  if (std::none_of(gemms_.begin(), gemms_.end(), same)) gemms_.push_back(g);
}

void GemmLog::add(const AttentionGrad& a) {
  const auto same = [&](const AttentionGrad& o) {
    const AttentionSpec &x = o.spec, &y = a.spec;
    return x.batch == y.batch && x.queries == y.queries && x.keys == y.keys && x.heads == y.heads &&
           x.kv_heads == y.kv_heads && x.head_dim == y.head_dim && o.out.dtype == a.out.dtype && !x.drop == !y.drop &&
           x.window == y.window && x.softcap == y.softcap;
  };
  if (std::none_of(attention_.begin(), attention_.end(), same)) attention_.push_back(a);
}

const OpTable kTable = kOps;
const DeviceApi kDevice{.name = "null",
                        .alloc = alloc,
                        .free = release,
                        .alloc_host = alloc_host,
                        .free_host = free_host,
                        .copy = copy,
                        .zero = zero,
                        .open_stream = open_stream,
                        .close_stream = close_stream,
                        .synchronize = synchronize,
                        .create_event = create_event,
                        .destroy_event = destroy_event,
                        .record = record,
                        .wait = wait,
                        .await = await,
                        .done = done,
                        .count = count,
                        .describe = describe,
                        .memory = memory};

}  // namespace gt::null
