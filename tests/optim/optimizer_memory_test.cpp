// A warm optimizer step allocates nothing on the heap.
#include <cstdlib>
#include <new>

#include "tests/optim/optimizer_rig.h"

using namespace gt;

namespace {
thread_local bool counting = false;
thread_local int64_t allocations = 0;
}  // namespace

#ifndef GPT_SANITIZED  // a sanitizer brings its own allocator: nothing is counted then
__attribute__((noinline)) void* operator new(size_t bytes) {
  if (counting) ++allocations;
  if (void* p = std::malloc(bytes > 0 ? bytes : 1)) return p;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* p) noexcept { std::free(p); }
__attribute__((noinline)) void operator delete(void* p, size_t) noexcept { std::free(p); }
constexpr int64_t kCounted = 1;  // what one new adds
#else
constexpr int64_t kCounted = 0;
#endif

TEST_CASE("a warm step of any optimizer under any schedule allocates nothing") {
  for (const std::string& type : optimizer_names())
    for (const std::string& name : lr_schedule_names()) {
      OptimizerOptions o = options(type.c_str());
      o.momentum = 0.9f;
      Rig rig(o);
      const auto schedule = make_lr_schedule({.type = name, .total_steps = 20});
      rig.step(1, kGrads[0]);
      counting = true;
      allocations = 0;
      for (int t = 2; t <= 4; ++t) {
        rig.point = schedule->at(t);
        rig.step(t, kGrads[t % 3]);
      }
      ::operator delete(::operator new(8));
      counting = false;
      INFO(type << " " << name);
      CHECK(allocations == kCounted);
    }
}
