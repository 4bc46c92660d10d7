#include "data/samples/loader.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <new>
#include <thread>

#include "tests/data/support.h"

using namespace gt;
using namespace gt::test;

namespace {
std::atomic<int64_t> allocations{0};
}
// Counts allocations of the whole program; malloc and free on both sides, since the compiler cannot match them through
// inlining.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#ifndef GPT_SANITIZED  // sanitizers replace the allocator: no counting
void* operator new(size_t n) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(n ? n : 1)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
#endif

namespace {
using Sample = std::vector<int32_t>;
constexpr Device kHost{};

// Sample n is seq + 1 values that encode n and the position; 7 is an occasional end of document.
class Counting final : public Dataset {
 public:
  explicit Counting(int64_t seq) : seq_(seq) {}
  int64_t size() const override { return 1000; }
  int64_t seq() const override { return seq_; }
  void read(int64_t n, const SampleBuffers& to) const override {
    const std::span<int32_t> out = to.tokens;
    if (n == bad) fail(Exit::kIo, "sample ", n, " is bad");
    for (size_t i = 0; i < out.size(); ++i)
      out[i] =
          (n + static_cast<int64_t>(i)) % 11 == 0 ? 7 : static_cast<int32_t>(100 * n + 10 + static_cast<int64_t>(i));
  }
  DataCursor cursor(int64_t n) const override { return {.consumed_samples = n}; }
  int64_t bad = -1;

 private:
  int64_t seq_;
};

// ordinal -> (tokens, targets) of the next `steps` steps of one rank.
using Stream2 = std::map<int64_t, std::pair<Sample, Sample>>;
void collect(Loader& l, int steps, Stream2* out) {
  for (int s = 0; s < steps; ++s)
    for (const MicroBatch& m : l.next())
      for (int64_t i = 0; i < m.batch; ++i) {
        const auto* t = m.tokens.as<int32_t>() + i * m.seq;
        const auto* y = m.targets.as<int32_t>() + i * m.seq;
        auto [at, fresh] = out->try_emplace(m.first_sample + i, Sample(t, t + m.seq), Sample(y, y + m.seq));
        CHECK(fresh);
      }
}
}  // namespace

TEST_CASE("the samples of a step depend on neither dp nor micro_batch, and resume anywhere") {
  const Counting data(9);
  Stream2 reference;
  {
    Loader l(data, {.seq = 9, .micro_batch = 8, .microbatches = 1}, kHost, host_device(), {});
    collect(l, 6, &reference);
    CHECK(l.consumed() == 48);
  }
  REQUIRE(reference.size() == 48);
  CHECK(reference[5].first[1] == 511);
  CHECK(reference[5].second[0] == 511);
  struct Shape {
    int64_t b;
    int m, dp;
  };
  for (const Shape s :
       {Shape{8, 1, 1}, Shape{1, 8, 1}, Shape{2, 2, 2}, Shape{1, 2, 4}, Shape{2, 1, 4}, Shape{4, 1, 2}}) {
    Stream2 got;
    for (int rank = 0; rank < s.dp; ++rank) {
      LoaderConfig c{.seq = 9, .micro_batch = s.b, .microbatches = s.m, .dp_rank = rank, .dp_size = s.dp};
      {
        Loader l(data, c, kHost, host_device(), {});
        collect(l, 2, &got);
        c.first_sample = l.consumed();
      }
      Loader resumed(data, c, kHost, host_device(), {});
      collect(resumed, 4, &got);
      CHECK(resumed.consumed() == 48);
    }
    CHECK(got == reference);
  }
}

TEST_CASE("microbatch k of dp rank i holds the ordinals of the formula") {
  const Counting data(4);
  Loader l(data, {.seq = 4, .micro_batch = 3, .microbatches = 2, .dp_rank = 1, .dp_size = 4, .first_sample = 24}, kHost,
           host_device(), {});
  const auto m = l.next();
  REQUIRE(m.size() == 2);
  CHECK(m[0].first_sample == 24 + (0 * 4 + 1) * 3);
  CHECK(m[1].first_sample == 24 + (1 * 4 + 1) * 3);
  CHECK((m[0].batch == 3 && m[0].seq == 4 && !m[0].train));
  CHECK(m[0].tokens.shape == Shape{3, 4});
  CHECK_FALSE(m[0].dloss);
  CHECK(l.consumed() == 48);
  CHECK(l.step_tokens() == 24);
}

TEST_CASE("a rank receives only the tensors it needs") {
  const Counting data(4);
  LoaderConfig c{.seq = 4, .micro_batch = 2, .microbatches = 2};
  c.need_targets = false;
  Loader first(data, c, kHost, host_device(), {});
  CHECK((first.next()[1].tokens && !first.next()[1].targets));
  c.need_targets = true;
  c.need_tokens = false;
  Loader last(data, c, kHost, host_device(), {});
  const auto m = last.next();
  CHECK((!m[1].tokens && m[1].targets));
  CHECK(m[1].targets.as<int32_t>()[0] == 100 * 2 + 10 + 1);
  c.need_targets = false;
  Counting never(4);
  never.bad = 0;
  Loader middle(never, c, kHost, host_device(), {});  // would throw if it read sample 0
  CHECK(middle.next()[1].first_sample == 2);
  CHECK(middle.step_tokens() == 16);
}

TEST_CASE("targets that end a document carry no loss when so configured") {
  const Counting data(30);
  Loader l(data, {.seq = 30, .micro_batch = 2, .eod_mask_loss = true, .eod = 7}, kHost, host_device(), {});
  const auto m = l.next();
  int64_t real = 0;
  for (int64_t i = 0; i < 60; ++i) {
    const int32_t y = m[0].targets.as<int32_t>()[i];
    CHECK(y != 7);
    real += y >= 0;
  }
  CHECK(real < 60);
  CHECK(l.step_tokens() == real);
  CHECK(m[0].tokens.as<int32_t>()[0] == 7);  // inputs keep it
  Loader unmasked(data, {.seq = 30, .micro_batch = 2}, kHost, host_device(), {});
  unmasked.next();
  CHECK(unmasked.step_tokens() == 60);
  expect_error(Exit::kUsage, {"eod_mask_loss"},
               [&] { Loader(data, {.seq = 30, .eod_mask_loss = true}, kHost, host_device(), {}); });
}

TEST_CASE("evaluation over a whole split masks the last batch, ends, and repeats exactly") {
  const Counting data(5);
  const LoaderConfig c{.seq = 5, .micro_batch = 2, .microbatches = 1, .dp_rank = 1, .dp_size = 2, .total_samples = 7};
  Loader l(data, c, kHost, host_device(), {});
  for (int pass = 0; pass < 3; ++pass) {
    CHECK(l.next()[0].targets.as<int32_t>()[0] == 211);
    CHECK(l.step_tokens() == 10);
    const auto m = l.next();  // ordinals 6 and 7: 7 is beyond the end
    REQUIRE(m.size() == 1);
    CHECK(m[0].targets.as<int32_t>()[0] == 611);
    for (int i = 5; i < 10; ++i) CHECK(m[0].targets.as<int32_t>()[i] == -1);
    CHECK(l.step_tokens() == 5);
    CHECK(l.next().empty());
    CHECK(l.next().empty());
    l.restore(0);
  }
}

TEST_CASE("evaluation over a split of whole batches ends after the last of them") {
  const Counting data(5);
  Loader l(data, {.seq = 5, .micro_batch = 2, .total_samples = 6}, kHost, host_device(), {});
  for (int i = 0; i < 3; ++i) CHECK(l.next().size() == 1);
  CHECK(l.next().empty());
}

TEST_CASE("skipped windows are left out") {
  const Counting data(4);
  Loader l(data, {.seq = 4, .micro_batch = 2, .skip_windows = {{4, 8}, {8, 10}}}, kHost, host_device(), {});
  std::vector<int64_t> firsts;
  for (int i = 0; i < 4; ++i) firsts.push_back(l.next()[0].first_sample);
  CHECK(firsts == std::vector<int64_t>{0, 2, 10, 12});
  CHECK(l.consumed() == 14);
}

TEST_CASE("an error of the reader is reported at its step, not earlier, and persists") {
  Counting data(4);
  data.bad = 5;
  Loader l(data, {.seq = 4, .micro_batch = 2}, kHost, host_device(), {});
  CHECK(l.next()[0].first_sample == 0);
  CHECK(l.next()[0].first_sample == 2);
  expect_error(Exit::kIo, {"sample 5 is bad"}, [&] { l.next(); });
  expect_error(Exit::kIo, {"sample 5 is bad"}, [&] { l.next(); });
  CHECK(l.consumed() == 4);
}

TEST_CASE("a loader rejects invalid options") {
  const Counting data(4);
  const auto make = [&](LoaderConfig c) { Loader l(data, c, kHost, host_device(), {}); };
  expect_error(Exit::kUsage, {"seq 5", "4"}, [&] { make({.seq = 5}); });
  expect_error(Exit::kUsage, {"micro_batch", "found 0"}, [&] { make({.seq = 4, .micro_batch = 0}); });
  expect_error(Exit::kUsage, {"dp rank 2 of 2"}, [&] { make({.seq = 4, .dp_rank = 2, .dp_size = 2}); });
  expect_error(Exit::kUsage, {"data.prefetch"}, [&] { make({.seq = 4, .prefetch = 0}); });
  expect_error(Exit::kUsage, {"skip_windows"}, [&] { make({.seq = 4, .skip_windows = {{5, 3}}}); });
}

TEST_CASE("a warm loader allocates nothing") {
  TempDir dir;
  write_documents(dir / "a", {Sample(30000, 1), Sample(30000, 2)});
  write_documents(dir / "b", {Sample(30000, 3)});
  DatasetOptions o;
  o.sources = {{dir / "a", 2}, {dir / "b", 1}};
  o.whole = true;
  o.seq = 16;
  o.cache_dir = dir / "cache";
  const auto data = open_dataset(o);
  Loader l(*data, {.seq = 16, .micro_batch = 4, .microbatches = 2, .eod_mask_loss = true, .eod = 2}, kHost,
           host_device(), {});
  for (int i = 0; i < 3; ++i) l.next();
  const int64_t before = allocations.load();
  for (int i = 0; i < 200; ++i) l.next();
  CHECK(allocations.load() == before);
}

// Reads of ordinals from `gate` on wait until it is moved; every read takes `ms`.
class Gated final : public Dataset {
 public:
  explicit Gated(int ms) : ms_(ms) {}
  int64_t size() const override { return all_.size(); }
  int64_t seq() const override { return all_.seq(); }
  void read(int64_t n, const SampleBuffers& to) const override {
    gate.wait(n);
    std::this_thread::sleep_for(std::chrono::milliseconds(ms_));
    all_.read(n, to);
  }
  DataCursor cursor(int64_t n) const override { return all_.cursor(n); }
  mutable std::atomic<int64_t> gate{-1};  // the ordinal that is held up

 private:
  Counting all_{4};
  int ms_;
};

TEST_CASE("steps are read ahead of those that train, and waiting for them is reported") {
  Gated data(0);
  data.gate = 3;
  {
    Loader l(data, {.seq = 4, .prefetch = 2}, kHost, host_device(), {});
    for (int i = 0; i < 3; ++i) l.next();  // step 3 is in reach, though the read behind it does not return
    CHECK(l.consumed() == 3);
    data.gate = -1;
    data.gate.notify_all();
    l.next();
  }
  const Gated slow(5);
  Loader l(slow, {.seq = 4}, kHost, host_device(), {});
  for (int i = 0; i < 8; ++i) l.next();
  CHECK(l.wait_seconds() > 0.02);
}

// ---- a device with asynchronous copies, on a thread of its own

namespace {
struct Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool closing = false;
  std::thread thread;
};
struct Mark {
  std::mutex mutex;
  std::condition_variable changed;
  int64_t requested = 0, reached = 0;
};
std::atomic<int> copy_us{0}, open_things{0};

void push(Stream s, std::function<void()> f) {
  auto* q = static_cast<Queue*>(s.native);
  {
    const std::lock_guard lock(q->mutex);
    q->work.push_back(std::move(f));
  }
  q->changed.notify_all();
}

DeviceApi late_device() {
  DeviceApi d = host_device();
  d.name = "late";
  d.alloc_host = [](int64_t n) {
    ++open_things;
    return std::malloc(static_cast<size_t>(n));
  };
  d.free_host = [](void* p, int64_t) {
    --open_things;
    std::free(p);
  };
  d.open_stream = [](int, int) {
    ++open_things;
    auto* q = new Queue;
    q->thread = std::thread([q] {
      for (;;) {
        std::function<void()> f;
        {
          std::unique_lock lock(q->mutex);
          q->changed.wait(lock, [&] { return q->closing || !q->work.empty(); });
          if (q->work.empty()) return;
          f = std::move(q->work.front());
          q->work.pop_front();
        }
        f();
      }
    });
    return Stream{{DeviceKind::kCuda, 0}, q};
  };
  d.close_stream = [](Stream s) {
    --open_things;
    auto* q = static_cast<Queue*>(s.native);
    {
      const std::lock_guard lock(q->mutex);
      q->closing = true;
    }
    q->changed.notify_all();
    q->thread.join();
    delete q;
  };
  d.create_event = [](int) -> Event {
    ++open_things;
    return new Mark;
  };
  d.destroy_event = [](Event e) {
    --open_things;
    delete static_cast<Mark*>(e);
  };
  d.record = [](Event e, Stream s) {
    auto* m = static_cast<Mark*>(e);
    int64_t n;
    {
      const std::lock_guard lock(m->mutex);
      n = ++m->requested;
    }
    push(s, [m, n] {
      {
        const std::lock_guard lock(m->mutex);
        m->reached = n;
      }
      m->changed.notify_all();
    });
  };
  d.wait = [](Event e, Stream s) {
    auto* m = static_cast<Mark*>(e);
    int64_t n;
    {
      const std::lock_guard lock(m->mutex);
      n = m->requested;
    }
    push(s, [m, n] {
      std::unique_lock lock(m->mutex);
      m->changed.wait(lock, [&] { return m->reached >= n; });
    });
  };
  d.done = [](Event e) {
    auto* m = static_cast<Mark*>(e);
    const std::lock_guard lock(m->mutex);
    return m->reached == m->requested;
  };
  d.synchronize = [](Stream s) {
    std::mutex mutex;
    std::condition_variable cv;
    bool done = false;
    push(s, [&] {
      const std::lock_guard lock(mutex);
      done = true;
      cv.notify_all();
    });
    std::unique_lock lock(mutex);
    cv.wait(lock, [&] { return done; });
  };
  d.copy = [](void* a, const void* b, int64_t n, Stream s) {
    push(s, [=] {
      std::this_thread::sleep_for(std::chrono::microseconds(copy_us.load()));
      std::memcpy(a, b, static_cast<size_t>(n));
    });
  };
  return d;
}
}  // namespace

TEST_CASE("with late copies and a late consumer every step still reads its own samples") {
  const DeviceApi api = late_device();
  const Counting data(6);
  for (int us : {0, 400}) {
    copy_us = us;
    const Stream compute = api.open_stream(0, 1);
    std::vector<int32_t> tokens_read;
    {
      Loader l(data, {.seq = 6, .micro_batch = 1, .microbatches = 2}, {DeviceKind::kCuda, 0}, api, compute);
      for (int round = 0; round < 2; ++round) {
        for (int step = 0; step < 20; ++step)
          for (const MicroBatch& m : l.next()) {
            push(compute, [&tokens_read, m, us] {  // runs later, when the loader is several steps ahead
              std::this_thread::sleep_for(std::chrono::microseconds(us));
              tokens_read.push_back(m.tokens.as<int32_t>()[5]);
              tokens_read.push_back(m.targets.as<int32_t>()[5]);
            });
          }
        l.restore(0);
      }
      api.synchronize(compute);
    }
    api.close_stream(compute);
    REQUIRE(tokens_read.size() == 160);
    Sample row(7);
    bool same = true;
    for (size_t i = 0; i < 80; ++i) {
      data.fetch(static_cast<int64_t>(i % 40), row);
      same = same && tokens_read[2 * i] == row[5] && tokens_read[2 * i + 1] == row[6];
    }
    CHECK(same);
  }
  CHECK(open_things == 0);  // streams, events and host memory were released
}
