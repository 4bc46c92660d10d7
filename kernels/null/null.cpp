#include "kernels/null/null.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernels/core/memory.h"
#include "kernels/null/product_log.h"

namespace gt::null {
namespace {

thread_local ProductLog* product_log = nullptr;

template <class Args>
void nothing(const Args&, Stream) {}
template <>
void nothing(const Gemm& g, Stream) {
  if (product_log != nullptr && g.b_version > 0) product_log->add(g);
}
template <>
void nothing(const AttentionGrad& a, Stream) {
  if (product_log != nullptr) product_log->add(a);
}

constexpr OpTable kOps{.name = "null",
#define X(entry, Args, amp) .entry = nothing<Args>,
                       GT_OPS(X)
#undef X
};
GT_COMPLETE_TABLE(kOps);

// Address space without memory behind it: distinct addresses, and a fault for whoever touches one.
void* alloc(int, int64_t bytes) {
  GT_CHECK(bytes >= 0, "asked for ", bytes, " bytes");
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, kAlign));
  void* p = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  GT_REQUIRE(p != MAP_FAILED, Exit::kUsage, "null device: cannot reserve ", bytes, " bytes of address space (",
             std::strerror(errno), "); raise `ulimit -v`");
  return p;
}

void release(int, void* p, int64_t bytes) {
  if (p != nullptr) munmap(p, static_cast<size_t>(std::max<int64_t>(bytes, kAlign)));
}

// Host memory is real: callers write batches and scalars into it.
void* alloc_host(int64_t bytes) {
  void* p = std::aligned_alloc(kAlign, static_cast<size_t>(std::max(align_up(bytes), kAlign)));
  GT_REQUIRE(p != nullptr, Exit::kUsage, "host memory: asked for ", bytes, " bytes");
  return p;
}
void free_host(void* p, int64_t) { std::free(p); }

void copy(void*, const void*, int64_t, Stream) {}
void zero(void*, int64_t, Stream) {}
Stream open_stream(int index, int) { return {{DeviceKind::kNull, static_cast<int8_t>(index)}, nullptr}; }
void close_stream(Stream) {}
void synchronize(Stream) {}
Event make_event(int) { return nullptr; }
void drop_event(Event) {}
void record(Event, Stream) {}
void wait(Event, Stream) {}
void await(Event) {}
bool done(Event) { return true; }
int count() { return 1; }
std::string describe(int) { return "null device: computes nothing, has no memory"; }
void memory(int, int64_t* free_bytes, int64_t* total_bytes) {  // what a 47-bit address space has room for
  if (free_bytes != nullptr) *free_bytes = int64_t{1} << 46;
  if (total_bytes != nullptr) *total_bytes = int64_t{1} << 46;
}

}  // namespace

ProductLog::ProductLog() : before_(std::exchange(product_log, this)) {}
ProductLog::~ProductLog() { product_log = before_; }

void ProductLog::add(const Gemm& g) {
  const auto same = [&](const Gemm& o) {
    return o.b.data == g.b.data && o.b.shape == g.b.shape && o.trans_b == g.trans_b && o.b.dtype == g.b.dtype;
  };
  if (std::none_of(products_.begin(), products_.end(), same)) products_.push_back(g);
}

void ProductLog::add(const AttentionGrad& a) {
  const auto same = [&](const AttentionGrad& o) {
    return o.batch == a.batch && o.seq == a.seq && o.heads == a.heads && o.kv_heads == a.kv_heads &&
           o.head_dim == a.head_dim && o.qkv.dtype == a.qkv.dtype && !o.drop == !a.drop;
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
                        .make_event = make_event,
                        .drop_event = drop_event,
                        .record = record,
                        .wait = wait,
                        .await = await,
                        .done = done,
                        .count = count,
                        .describe = describe,
                        .memory = memory};

}  // namespace gt::null
