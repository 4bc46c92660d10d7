// The thread pool: coverage, determinism of the split, errors, nesting, oversubscription.
#include "kernels/cpu/pool.h"

#include <atomic>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "kernels/cpu/context.h"
#include "tests/support/test.h"

using gt::cpu::ThreadPool;

namespace {

struct Range {
  int64_t begin, end;
  int thread;
  friend bool operator==(const Range&, const Range&) = default;
};

std::vector<Range> split(ThreadPool& pool, int64_t n, int64_t grain) {
  std::vector<Range> by_thread(static_cast<size_t>(pool.threads()), Range{0, 0, -1});
  pool.parallel_for(n, grain, [&](int64_t begin, int64_t end, int thread) {
    by_thread[static_cast<size_t>(thread)] = {begin, end, thread};
  });
  return by_thread;
}

}  // namespace

TEST_CASE("a pool gives every index to exactly one thread") {
  for (int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    for (int64_t n : {0, 1, 2, 6, 7, 8, 100, 1000}) {
      for (int64_t grain : {1, 3, 64}) {
        std::vector<int> runs(static_cast<size_t>(n), 0);
        std::atomic<int> out_of_range{0};  // assertions only on the main thread
        pool.parallel_for(n, grain, [&](int64_t begin, int64_t end, int thread) {
          if (thread < 0 || thread >= threads) ++out_of_range;
          for (int64_t i = begin; i < end; ++i) ++runs[static_cast<size_t>(i)];
        });
        CHECK(out_of_range == 0);
        CHECK(std::accumulate(runs.begin(), runs.end(), int64_t{0}) == n);
        for (int count : runs) REQUIRE(count == 1);
      }
    }
  }
}

TEST_CASE("a pool splits in thread order, on multiples of the grain, always the same way") {
  ThreadPool pool(3);
  const std::vector<Range> ranges = split(pool, 1000, 64);
  int64_t at = 0;
  for (const Range& r : ranges) {
    CHECK(r.begin == at);
    CHECK(r.begin % 64 == 0);
    CHECK(r.end - r.begin >= 5 * 64 - 24);
    at = r.end;
  }
  CHECK(at == 1000);
  for (int i = 0; i < 20; ++i) CHECK(split(pool, 1000, 64) == ranges);
}

TEST_CASE("work of one grain stays on the calling thread") {
  ThreadPool pool(4);
  const auto caller = std::this_thread::get_id();
  int calls = 0;
  pool.parallel_for(64, 64, [&](int64_t begin, int64_t end, int thread) {
    CHECK(std::this_thread::get_id() == caller);
    CHECK((begin == 0 && end == 64 && thread == 0));
    ++calls;
  });
  CHECK(calls == 1);
}

TEST_CASE("an exception of a worker reaches the caller, the lowest thread's first, and the pool stays usable") {
  ThreadPool pool(4);
  for (int round = 0; round < 50; ++round) {
    std::string caught;
    try {
      pool.parallel_for(4, 1, [&](int64_t begin, int64_t, int) {
        if (begin >= 2) throw std::runtime_error("piece " + std::to_string(begin));
      });
    } catch (const std::runtime_error& e) { caught = e.what(); }
    CHECK(caught == "piece 2");
    std::atomic<int> ran{0};
    pool.parallel_for(4, 1, [&](int64_t, int64_t, int) { ++ran; });
    CHECK(ran == 4);
  }
}

TEST_CASE("a call from inside a body runs inline on the same thread") {
  ThreadPool pool(3);
  std::vector<int64_t> sums(3, 0);
  pool.parallel_for(3, 1, [&](int64_t outer, int64_t, int thread) {
    const auto here = std::this_thread::get_id();
    pool.parallel_for(100, 1, [&](int64_t begin, int64_t end, int inner) {
      if (std::this_thread::get_id() != here || inner != thread) throw std::runtime_error("moved");
      for (int64_t i = begin; i < end; ++i) sums[static_cast<size_t>(outer)] += i;
    });
  });
  CHECK(sums == std::vector<int64_t>{4950, 4950, 4950});
}

TEST_CASE("many small jobs on more threads than cores finish, with sleeping and with spinning pools side by side") {
  const int many = 2 * gt::cpu::usable_cores() + 1;
  ThreadPool sleeping(many, false), spinning(2);
  int64_t sum = 0;
  for (int i = 0; i < 3000; ++i) {
    std::vector<int64_t> part(static_cast<size_t>(many), 0);
    ThreadPool& pool = i % 2 ? sleeping : spinning;
    pool.parallel_for(many, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t k = begin; k < end; ++k) part[static_cast<size_t>(k)] = k + 1;
    });
    sum += std::accumulate(part.begin(), part.end(), int64_t{0});
  }
  CHECK(sum == 3000 * int64_t{many} * (many + 1) / 2);
}

TEST_CASE("scratch memory is aligned, grows, and keeps its address while it fits") {
  gt::cpu::CpuContext context(2);
  std::byte* first = context.scratch(1000);
  CHECK(reinterpret_cast<uintptr_t>(first) % 64 == 0);
  CHECK(context.scratch(10) == first);
  context.pool.parallel_for(2, 1, [&](int64_t, int64_t, int thread) {
    auto* mine = context.thread_scratch<float>(thread, 100);
    std::fill(mine, mine + 100, static_cast<float>(thread));
  });
  CHECK(context.thread_scratch<float>(0, 100)[99] == 0.0f);
  CHECK(context.thread_scratch<float>(1, 100)[99] == 1.0f);
  std::byte* larger = context.scratch(1 << 24);
  CHECK(reinterpret_cast<uintptr_t>(larger) % 64 == 0);
  CHECK(context.scratch(1 << 20) == larger);
}

TEST_CASE("a stream without a context runs on the calling thread, with one context per thread") {
  gt::cpu::CpuContext& mine = gt::cpu::cpu_context({});
  CHECK(&mine == &gt::cpu::cpu_context({}));
  CHECK(mine.pool.threads() == 1);
  gt::cpu::CpuContext* other = nullptr;
  std::thread([&] { other = &gt::cpu::cpu_context({}); }).join();
  CHECK(other != &mine);
}
