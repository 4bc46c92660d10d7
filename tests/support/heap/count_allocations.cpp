#include "tests/support/heap/count_allocations.h"

#include <cstdlib>
#include <new>

#include "kernels/core/check.h"

namespace {
thread_local bool counting = false;
thread_local int64_t allocations = 0;
}  // namespace

#ifndef GPT_SANITIZED
__attribute__((noinline)) void* operator new(size_t bytes) {
  if (counting) ++allocations;
  if (void* p = std::malloc(bytes > 0 ? bytes : 1)) return p;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* p) noexcept { std::free(p); }
__attribute__((noinline)) void operator delete(void* p, size_t) noexcept { std::free(p); }
constexpr int64_t kCounted = 1;  // added by one operator new
#else
constexpr int64_t kCounted = 0;
#endif

namespace gt {

CountAllocations::CountAllocations() {
  allocations = 0;
  counting = true;
  ::operator delete(::operator new(1));
  GT_CHECK(allocations == kCounted, "the counter does not count");
}
CountAllocations::~CountAllocations() { counting = false; }

int64_t CountAllocations::stop() {
  counting = false;
  return allocations - kCounted;
}

}  // namespace gt
