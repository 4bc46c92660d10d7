// Replayed graphs are equivalent to eager execution: on the CUDA backend if present (or its emulation), else on graphs
// made of the CPU's ops.
#include "kernels/replay.h"

#include <cstring>
#include <functional>
#include <vector>

#include "kernels/core/fields.h"
#include "kernels/core/memory.h"
#include "kernels/core/open_stream.h"
#include "tests/support/test.h"

namespace gt::test {
namespace {

// The CPU as a device with graphs, which consist of the calls made during capture.
namespace cpu_graphs {

using Calls = std::vector<std::function<void()>>;
Calls* captured = nullptr;
bool spoilt = false;   // by a call that no graph can contain
bool refuses = false;  // every capture fails
std::string refused;   // captures of this op fail
bool gone = false;     // device lost: every call throws
int made = 0, launched = 0, alive = 0;

const OpTable& ops() {
  static const OpTable t{.name = "cpu with graphs",
#define X(entry, Args, ...)                                       \
  .entry = [](const Args& a, Stream s) {                          \
    if (gone) throw Error(#entry " on a device that is gone");    \
    const auto call = [a, s] { cpu_backend().ops->entry(a, s); }; \
    if (captured != nullptr && refused == #entry) spoilt = true;  \
    captured != nullptr ? captured->push_back(call) : call();     \
  },
                         GT_OPS(X)
#undef X
  };
  return t;
}

const DeviceApi& device() {
  static const DeviceApi d = [] {
    DeviceApi api = *cpu_backend().device;
    api.zero = [](void* to, int64_t bytes, Stream s) {
      const auto call = [=] { cpu_backend().device->zero(to, bytes, s); };
      captured != nullptr ? captured->push_back(call) : call();
    };
    api.copy = [](void* to, const void* from, int64_t bytes, Stream s) {
      spoilt = spoilt || captured != nullptr;
      cpu_backend().device->copy(to, from, bytes, s);
    };
    api.capture = [](Stream, void (*queue)(void*), void* what, std::string* why) -> Graph {
      auto* calls = new Calls;
      captured = calls, spoilt = false;
      queue(what);
      captured = nullptr;
      if (!spoilt && !refuses) return ++made, ++alive, calls;
      delete calls;
      return *why = "refused by the test", nullptr;
    };
    api.synchronize = [](Stream s) {
      if (gone) throw Error("waiting for a device that is gone");
      cpu_backend().device->synchronize(s);
    };
    api.launch = [](Graph g, Stream) {
      if (gone) throw Error("launching on a device that is gone");
      ++launched;
      for (const auto& call : *static_cast<Calls*>(g)) call();
    };
    api.destroy_graph = [](Graph g) { --alive, delete static_cast<Calls*>(g); };
    return api;
  }();
  return d;
}

}  // namespace cpu_graphs

bool on_cpu() { return cuda_backend(nullptr) == nullptr; }

const Backend& recording_backend() {
  static const Backend fake{DeviceKind::kCpu, &cpu_graphs::ops(), &cpu_graphs::device()};
  return replayable(on_cpu() ? fake : *cuda_backend(nullptr));
}

constexpr int64_t kCount = 300;

// Vectors for a few ops; the same in host memory without graphs.
struct ReplayFixture {
  const Backend& b = recording_backend();
  OpenStream stream{*b.device, 0, 1};
  Buffer memory{4 * align_up(kCount * 4), Stream(stream).device, *b.device};
  Tensor x = at(0), y = at(1), z = at(2), other = at(3);
  std::vector<float> hx, hy, hz;
  Recording recording{b, stream};
  ReplayCounts counts;

  ReplayFixture() { set(1); }
  Tensor at(int k) { return memory.tensor({kCount}, DType::kF32, k * align_up(kCount * 4)); }
  void put(const Tensor& t, const std::vector<float>& v) {
    b.device->copy(t.data, v.data(), t.bytes(), stream);
    b.device->synchronize(stream);
  }
  std::vector<float> get(const Tensor& t) {
    std::vector<float> v(kCount);
    b.device->copy(v.data(), t.data, t.bytes(), stream);
    b.device->synchronize(stream);
    return v;
  }
  void set(float seed) {
    hx.assign(kCount, 0), hy = hz = hx;
    for (int64_t i = 0; i < kCount; ++i) hx[static_cast<size_t>(i)] = seed + static_cast<float>(i % 7);
    put(x, hx), put(y, hy), put(z, hz), put(other, hx);
  }
  // y += alpha x; z = x + y; y = 0 (`clears`); everything twice with a copy z -> x in between (`copies`).
  void work(float alpha, bool copies = false, bool clears = false) {
    b.ops->axpy({.x = x, .y = y, .alpha = alpha}, stream);
    b.ops->add({.a = x, .b = y, .out = z}, stream);
    if (clears) b.device->zero(y.data, y.bytes(), stream);
    if (!copies) return;
    b.device->copy(x.data, z.data, x.bytes(), stream);
    work(alpha, false, clears);
  }
  void expect(float alpha, bool copies = false, bool clears = false) {
    for (size_t i = 0; i < hx.size(); ++i) {
      hy[i] += alpha * hx[i];
      hz[i] = hx[i] + hy[i];
      if (clears) hy[i] = 0;
      if (copies) hx[i] = hz[i];
    }
    if (copies) expect(alpha, false, clears);
  }
  bool right() { return get(x) == hx && get(y) == hy && get(z) == hz; }
  template <class Work>
  void run(Work w) {
    recording.run(counts, w);
  }
};

void check_counts(const ReplayCounts& c, int64_t first, int64_t replayed, int64_t eager) {
  CHECK(c.first == first);
  CHECK(c.replayed == replayed);
  CHECK(c.eager == eager);
}

}  // namespace

TEST_CASE("replay: work with identical calls is recorded once and then launched as a graph on current memory") {
  ReplayFixture r;
  const int made = cpu_graphs::made, launched = cpu_graphs::launched;
  for (int k = 0; k < 5; ++k) {
    r.set(static_cast<float>(k));
    r.run([&] { r.work(2, false, k >= 0); });
    r.expect(2, false, true);
    CHECK(r.right());
  }
  check_counts(r.counts, 1, 4, 0);
  CHECK(r.counts.why.empty());
  if (!on_cpu()) return;
  CHECK(cpu_graphs::made == made + 1);
  CHECK(cpu_graphs::launched == launched + 4);
}

TEST_CASE("replay: copies and waits split the work into graphs and keep their order") {
  ReplayFixture r;
  const int made = cpu_graphs::made, launched = cpu_graphs::launched;
  for (int k = 0; k < 4; ++k) {
    r.set(static_cast<float>(k));
    r.run([&] {
      r.work(0.5f, true);
      CHECK(r.get(r.z).size() == kCount);  // executes the held-back calls
      r.work(3);
    });
    r.expect(0.5f, true), r.expect(3);
    CHECK(r.right());
  }
  check_counts(r.counts, 1, 3, 0);
  if (!on_cpu()) return;
  CHECK(cpu_graphs::made == made + 3);
  CHECK(cpu_graphs::launched == launched + 9);
}

TEST_CASE("replay: a mismatching call runs eagerly and in order") {
  struct Case {
    const char* why;
    std::function<void(ReplayFixture&)> work;
    std::function<void(ReplayFixture&)> expect;
  };
  const Case cases[] = {
      {"axpy with other arguments", [](ReplayFixture& r) { r.work(2), r.work(4); },
       [](ReplayFixture& r) { r.expect(2), r.expect(4); }},
      {"add where axpy was",
       [](ReplayFixture& r) {
         r.work(2);
         r.b.ops->add({.a = r.x, .b = r.y, .out = r.y}, r.stream);
       },
       [](ReplayFixture& r) {
         r.expect(2);
         for (size_t i = 0; i < r.hx.size(); ++i) r.hy[i] += r.hx[i];
       }},
      {"no axpy followed", [](ReplayFixture& r) { r.work(2); }, [](ReplayFixture& r) { r.expect(2); }},
      {"one axpy more", [](ReplayFixture& r) { r.work(2), r.work(3), r.work(5); },
       [](ReplayFixture& r) { r.expect(2), r.expect(3), r.expect(5); }},
      {"axpy with other arguments",
       [](ReplayFixture& r) {
         r.work(2);
         r.b.ops->axpy({.x = r.other, .y = r.y, .alpha = 3}, r.stream);
         r.b.ops->add({.a = r.x, .b = r.y, .out = r.z}, r.stream);
       },
       [](ReplayFixture& r) { r.expect(2), r.expect(3); }},
      {"inside a graph segment",
       [](ReplayFixture& r) {
         r.work(2);
         r.b.device->copy(r.other.data, r.z.data, r.z.bytes(), r.stream);
         std::vector<float> z(kCount);
         for (size_t i = 0; i < z.size(); ++i) z[i] = r.hx[i] + (r.hy[i] + 2 * r.hx[i]);
         CHECK(r.get(r.other) == z);  // the held-back calls have run
         r.work(3);
       },
       [](ReplayFixture& r) { r.expect(2), r.expect(3); }},
  };
  for (const Case& c : cases) {
    INFO(c.why);
    ReplayFixture r;
    const auto usual = [&] {
      r.set(1);
      r.run([&] { r.work(2), r.work(3); });
      r.expect(2), r.expect(3);
      CHECK(r.right());
    };
    const auto different = [&] {
      r.set(5);
      r.run([&] { c.work(r); });
      c.expect(r);
      CHECK(r.right());
      CHECK(r.counts.why.find(c.why) != std::string::npos);
    };
    usual(), usual(), different();
    check_counts(r.counts, 1, 1, 1);
    usual(), usual();  // recorded again
    check_counts(r.counts, 2, 2, 1);
    different(), usual(), usual(), different();
    check_counts(r.counts, 3, 3, 3);
    usual(), usual(), usual();  // not a third time
    check_counts(r.counts, 3, 3, 6);
  }
}

TEST_CASE("replay: where no graph can be captured the calls run eagerly") {
  ReplayFixture r;
  cpu_graphs::refuses = true;
  if (!on_cpu()) setenv("GPTTRAIN_EMULATED_CAPTURE", "spoilt", 1);
  for (int k = 0; k < 4; ++k) {
    r.set(static_cast<float>(k));
    r.run([&] { r.work(2, true); });
    r.expect(2, true);
    CHECK(r.right());
  }
  cpu_graphs::refuses = false;
  unsetenv("GPTTRAIN_EMULATED_CAPTURE");
  if (!on_cpu() && r.counts.eager == 0) return;  // a real device, which ignores the variable
  check_counts(r.counts, 1, 0, 3);
  CHECK(r.counts.why.find("no graph could be made: ") == 0);
}

TEST_CASE("replay: an op that cannot be captured is named") {
  if (!on_cpu()) return;
  ReplayFixture r;
  cpu_graphs::refused = "add";
  for (int k = 0; k < 3; ++k) {
    r.set(1);
    r.run([&] { r.work(2); });
    r.expect(2);
    CHECK(r.right());
  }
  cpu_graphs::refused.clear();
  check_counts(r.counts, 1, 0, 2);
  CHECK(r.counts.why == "no graph could be made: add: refused by the test");
}

TEST_CASE("replay: the first error of a lost device is the one reported") {
  if (!on_cpu()) return;
  const int alive = cpu_graphs::alive;
  {
    ReplayFixture r;
    for (const bool frees : {false, true}) {
      const auto work = [&](bool now) {
        r.b.ops->axpy({.x = r.x, .y = r.y, .alpha = 2}, r.stream);
        if (now) Buffer(kAlign, Stream(r.stream).device, *r.b.device);  // its destructor executes the held-back calls
        r.b.ops->add({.a = r.x, .b = r.y, .out = r.z}, r.stream);
      };
      for (int k = 0; k < 2; ++k) {
        r.set(1);
        r.run([&] { work(false); });
        r.expect(2);
        CHECK(r.right());
      }
      cpu_graphs::gone = true;
      const char* expected = frees ? "axpy on a device that is gone" : "launching on a device that is gone";
      CHECK_THROWS_WITH(r.run([&] { work(frees); }), Catch::Contains(expected));
      cpu_graphs::gone = false;
    }
  }
  CHECK(cpu_graphs::alive == alive);
}

namespace {

// A library whose calls add 1 to z, eagerly or as part of a graph; logs every request.
struct Side final : SideCalls {
  ReplayFixture& r;
  std::string log;
  bool good = true;
  explicit Side(ReplayFixture& rig) : r(rig) {}
  SideCall call(uint64_t what) { return {this, {what}}; }
  Recording::Answer queue(uint64_t what) {
    const Recording::Answer a = Recording::side_call(call(what), r.stream);
    log += a.fate == Recording::Fate::kHeldBack ? 'h' : a.fate == Recording::Fate::kRecorded ? 'n' : 'o';
    if (a.fate != Recording::Fate::kHeldBack) run();
    return a;
  }
  void run() {
    const Recording::Bypass aside;
    r.b.ops->axpy({.x = r.x, .y = r.z, .alpha = 1}, r.stream);
  }
  void make(const SideCall& c, size_t number, Stream, bool captured) override {
    log += cat(captured ? "[c" : "[m", c.words[0], "@", number, "]");
    run();
  }
  void close(Stream, bool) override { log += '.'; }
  void settle(std::span<const SideCall> calls, Stream) override { log += cat("s", calls.size()); }
  void launched(std::span<const SideCall>, Stream) override { log += 'l'; }
  bool agree(std::span<const SideCall>, bool mine) override { return log += 'a', mine && good; }
  std::string take_log() { return std::exchange(log, {}); }
};

}  // namespace

TEST_CASE("replay: a library's own calls become parts of graphs only if all its ranks can capture them") {
  for (const bool good : {true, false}) {
    ReplayFixture r;
    Side side(r);
    side.good = good;
    std::vector<size_t> numbers;
    const auto step = [&](bool differs = false) {
      r.set(1);
      const std::vector<float> x = r.hx;
      r.run([&] {
        r.work(2);
        numbers.push_back(side.queue(7).number);
        r.b.ops->axpy({.x = r.x, .y = r.z, .alpha = differs ? 2.f : 1.f}, r.stream);
      });
      r.expect(2);
      for (size_t i = 0; i < x.size(); ++i) r.hz[i] += (differs ? 3 : 2) * x[i];
      CHECK(r.right());
    };
    step();
    CHECK(side.take_log() == "n");
    step();
    CHECK(side.take_log() == (good ? "hs1[c7@2].as1l" : "hs1[c7@2].as1[m7@2]."));
    step();
    CHECK(side.take_log() == (good ? "hs1l" : "o"));
    if (!good) {
      CHECK(r.counts.why == "no graph could be made: another rank could make none");
      continue;
    }
    step(true);
    CHECK(side.take_log() == "h[m7@2].");
    CHECK(r.counts.why == "axpy with other arguments");
    CHECK(numbers == std::vector<size_t>{2, 2, 2, 2});
    check_counts(r.counts, 1, 2, 1);
  }
}

TEST_CASE("replay: bypassing calls are queued before held-back ones and split no segment") {
  ReplayFixture r;
  const auto step = [&] {
    r.set(1);
    r.run([&] {
      r.b.ops->axpy({.x = r.x, .y = r.y, .alpha = 2}, r.stream);
      {
        const Recording::Bypass aside;
        r.b.device->copy(r.other.data, r.y.data, r.y.bytes(), r.stream);
      }
      r.b.ops->add({.a = r.x, .b = r.y, .out = r.z}, r.stream);
    });
    r.expect(2);
    CHECK(r.right());
  };
  step();
  CHECK(r.get(r.other) == r.hy);
  step();
  CHECK(r.get(r.other) == std::vector<float>(kCount, 0));
  check_counts(r.counts, 1, 1, 0);
}

TEST_CASE("replay: an exception in the work leaves nothing behind") {
  ReplayFixture r;
  const auto usual = [&] {
    r.set(1);
    r.run([&] { r.work(2), r.work(3); });
    r.expect(2), r.expect(3);
    CHECK(r.right());
  };
  usual(), usual();
  CHECK_THROWS_WITH(r.run([&] {
    r.work(2);
    GT_CHECK(false, "in the middle");
  }),
                    Catch::Contains("in the middle"));
  usual(), usual();
  check_counts(r.counts, 2, 2, 0);
}

TEST_CASE("replay: a weight of another version is the same call") {
  ReplayFixture r;
  const Tensor a = r.x.slice(0, 16).view({4, 4}), b = r.y.slice(0, 16).view({4, 4}),
               out = r.z.slice(0, 16).view({4, 4});
  for (int k = 0; k < 3; ++k)
    r.run([&] {
      r.b.ops->gemm({.a = a, .b = b, .out = out, .b_version = k + 1}, r.stream);
      r.b.ops->add({.a = r.x, .b = r.z, .out = r.other}, r.stream);
    });
  check_counts(r.counts, 1, 2, 0);
}

TEST_CASE("replay: graphs are dropped with their recording") {
  const int alive = cpu_graphs::alive;
  {
    ReplayFixture r;
    for (int k = 0; k < 2; ++k) r.run([&] { r.work(2); });
    CHECK(cpu_graphs::alive == alive + (on_cpu() ? 1 : 0));
  }
  CHECK(cpu_graphs::alive == alive);
}

namespace {

template <class T>
void expect_every_member_compared(const char* op) {
  INFO(op);
  const T same{}, twice{};
  CHECK(same_bits(same, twice));
  size_t at = 0;
  T changed{};
  std::apply(
      [&](const auto&... member) {
        const auto change = [&](auto& m) {
          using M = std::remove_cvref_t<decltype(m)>;
          const M before = m;
          auto& bytes = const_cast<unsigned char&>(reinterpret_cast<const unsigned char&>(m));
          bytes ^= 1;  // of a tensor its address, of a mask its key
          INFO("member " << at++);
          CHECK_FALSE(same_bits(changed, same));
          const_cast<M&>(m) = before;
          CHECK(same_bits(changed, same));
        };
        (change(member), ...);
      },
      fields::of(changed));
}

}  // namespace

TEST_CASE("replay: every member of every op's arguments distinguishes calls") {
#define X(entry, Args, ...) expect_every_member_compared<Args>(#entry);
  GT_OPS(X)
#undef X
  CHECK(fields::count<Gemm>() == 14);
  CHECK(fields::count<LayerNormGrad>() == 18);
  CHECK(fields::count<Tensor>() == 4);
  Tensor a, b;
  b.shape = {1};
  CHECK_FALSE(same_bits(a, b));
  b = a, b.dtype = DType::kBF16;
  CHECK_FALSE(same_bits(a, b));
  b = a, b.device.index = 1;
  CHECK_FALSE(same_bits(a, b));
}

}  // namespace gt::test
