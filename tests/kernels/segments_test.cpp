// One call over a segment table is bitwise identical to one call per segment, on every available backend. Also the
// guarantees of tables themselves.
#include <array>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/open_stream.h"
#include "tests/kernels/reference/reference_ops.h"
#include "tests/support/test.h"

namespace gt::test {
namespace {

constexpr std::array<int64_t, 7> kCounts{70001, 32768, 3, 9000, 1, 768, 16390};
constexpr std::array<int32_t, 7> kGroups{0, 0, 1, 1, 2, 4, 4};
constexpr int64_t kGroupCount = 5;
constexpr DType kValue = DType::kBF16;

// Memory of all segments and the sums of their groups on one device, with reproducible contents.
class SegmentsFixture {
 public:
  SegmentsFixture(const Backend& backend, Stream stream, int64_t skew) : backend_(backend), stream_(stream) {
    uint64_t state = 7;
    const auto number = [&] {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      return static_cast<float>(state >> 40) / (1 << 24) - 0.5f;
    };
    for (const int64_t count : kCounts) {
      Segment s{.count = count, .weight_decay = segments.size() % 2 == 0 ? 0.1f : 0};
      s.group = kGroups[segments.size()];
      s.counted = segments.size() == 3 ? 0 : 1;
      s.master = take(count, skew, number), s.grad = take(count, skew, number);
      s.m = reinterpret_cast<float*>(take(count, skew, number));
      s.v = reinterpret_cast<float*>(take(count, skew, [&] { return number() * number() + 0.26f; }));
      s.value = take(count, skew, [] { return 0.f; });
      if (segments.size() == 5) s.value = nullptr;
      segments.push_back(s);
    }
    const float k[kNumScalars] = {1e-2f, 0.9f, 0.5f, 0.3f, 0.7f, 0, 1, 0.95f, 0.5f};
    size_t i = 0;
    scalars = {take(kNumScalars, 0, [&] { return k[i++]; }), {kNumScalars}, DType::kF32, stream.device};
    sums = {take(4 * kGroupCount, 0, [] { return 1.f; }), {2 * kGroupCount}, DType::kF64, stream.device};
    ratios = {take(kGroupCount, 0, [] { return 1.f; }), {kGroupCount}, DType::kF32, stream.device};
  }

  std::vector<std::byte> image() const {
    std::vector<std::byte> out;
    for (const Buffer& b : memory_) {
      out.resize(out.size() + static_cast<size_t>(b.bytes()));
      backend_.device->copy(out.data() + out.size() - b.bytes(), b.data(), b.bytes(), stream_);
      backend_.device->synchronize(stream_);
    }
    return out;
  }
  SegmentTables tables(bool one_each) const {
    SegmentTables t;
    for (const Segment& s : segments) {
      if (one_each || &s == &segments.front()) t.open(DType::kF32, DType::kF32, kValue);
      t.add(s);
    }
    t.upload(static_cast<int64_t>(segments.size()), stream_, *backend_.device);
    return t;
  }
  std::vector<Segment> segments;
  Tensor scalars, sums, ratios;

 private:
  template <class F>
  std::byte* take(int64_t count, int64_t skew, F number) {
    std::vector<float> host(static_cast<size_t>(count + skew + 16), 0.f);
    for (size_t i = static_cast<size_t>(skew); i < static_cast<size_t>(skew + count); ++i) host[i] = number();
    const auto bytes = static_cast<int64_t>(host.size() * sizeof(float));
    memory_.emplace_back(align_up(bytes), stream_.device, *backend_.device);
    backend_.device->zero(memory_.back().data(), memory_.back().bytes(), stream_);
    backend_.device->copy(memory_.back().data(), host.data(), bytes, stream_);
    backend_.device->synchronize(stream_);
    return memory_.back().data() + skew * static_cast<int64_t>(sizeof(float));
  }
  const Backend& backend_;
  Stream stream_;
  std::vector<Buffer> memory_;
};

using Call = std::function<void(const OpTable&, const SegmentTable&, const SegmentsFixture&, Stream)>;

void expect_same(const Backend& backend, Stream stream, const std::string& op, const Call& call) {
  for (const int64_t skew : {0, 1}) {
    const SegmentsFixture one(backend, stream, skew), many(backend, stream, skew);
    const SegmentTables together = one.tables(false), apart = many.tables(true);
    for (const SegmentTable& t : together.tables()) call(*backend.ops, t, one, stream);
    for (const SegmentTable& t : apart.tables()) call(*backend.ops, t, many, stream);
    backend.device->synchronize(stream);
    INFO(backend.ops->name << ' ' << op << ", " << skew << " elements behind an aligned address");
    const bool same_bits = one.image() == many.image();
    CHECK(same_bits);
    const bool something_done = one.image() != SegmentsFixture(backend, stream, skew).image();
    CHECK(something_done);
  }
}

// Group by group: calls per segment each leave the sum of the last segment; the host adds these up in table order.
template <class F>
void expect_sums(const Backend& backend, Stream stream, int per_group, const F& call) {
  const SegmentsFixture world(backend, stream, 0);
  const auto read = [&] {
    std::vector<double> host(static_cast<size_t>(world.sums.numel()));
    backend.device->copy(host.data(), world.sums.data, world.sums.bytes(), stream);
    backend.device->synchronize(stream);
    return host;
  };
  const SegmentTables together = world.tables(false), apart = world.tables(true);
  std::vector<double> expected = read();
  for (const int32_t g : kGroups)
    for (int j = 0; j < per_group; ++j) expected[static_cast<size_t>(per_group * g + j)] = 0;
  for (const SegmentTable& t : apart.tables()) {
    call(*backend.ops, t, world);
    const std::vector<double> now = read();
    for (int j = 0; j < per_group; ++j) {
      const auto at = static_cast<size_t>(per_group * t.host->group + j);
      expected[at] += now[at];
    }
  }
  const SegmentsFixture again(backend, stream, 0);
  const SegmentTables fresh = again.tables(false);
  call(*backend.ops, fresh.tables().front(), again);
  backend.device->synchronize(stream);
  std::vector<double> got(expected.size());
  backend.device->copy(got.data(), again.sums.data, again.sums.bytes(), stream);
  backend.device->synchronize(stream);
  CHECK(got == expected);
}

void on_every_backend(const std::function<void(const Backend&, Stream)>& check) {
  for (const int threads : {1, 3}) {
    const OpenStream stream(*cpu_backend().device, 0, threads);
    check(cpu_backend(), stream);
  }
  if (const Backend* cuda = cuda_backend(nullptr)) {
    const OpenStream stream(*cuda->device, 0, 1);
    check(*cuda, stream);
  }
}

}  // namespace

TEST_CASE("segments: a step over a table is bitwise identical to one call per segment") {
  on_every_backend([](const Backend& backend, Stream stream) {
    for (const bool l2 : {false, true})
      expect_same(backend, stream, "adamw", [l2](auto& ops, auto& t, auto& w, Stream s) {
        ops.adamw({.table = t, .scalars = w.scalars, .adam_l2 = l2}, s);
      });
    expect_same(backend, stream, "sgd", [](auto& ops, auto& t, auto& w, Stream s) {
      ops.sgd({.table = t, .scalars = w.scalars, .nesterov = true}, s);
    });
    expect_same(backend, stream, "lion",
                [](auto& ops, auto& t, auto& w, Stream s) { ops.lion({.table = t, .scalars = w.scalars}, s); });
    expect_same(backend, stream, "adagrad",
                [](auto& ops, auto& t, auto& w, Stream s) { ops.adagrad({.table = t, .scalars = w.scalars}, s); });
    expect_same(backend, stream, "lamb_apply", [](auto& ops, auto& t, auto& w, Stream s) {
      ops.lamb_apply({.table = t, .scalars = w.scalars, .norms = w.sums, .ratio = w.ratios}, s);
    });
  });
}

TEST_CASE("segments: group sums are bitwise the ordered sums of their segments") {
  on_every_backend([](const Backend& backend, Stream stream) {
    expect_sums(backend, stream, 1,
                [&](auto& ops, auto& t, auto& w) { ops.sum_squares({.table = t, .out = w.sums}, stream); });
    expect_sums(backend, stream, 2, [&](auto& ops, auto& t, auto& w) {
      ops.lamb_moments({.table = t, .scalars = w.scalars, .norms = w.sums}, stream);
    });
  });
}

TEST_CASE("segments: invalid tables are refused") {
  const Backend& cpu = cpu_backend();
  std::byte bytes[64] = {};
  SegmentTables t;
  CHECK_THROWS_WITH(t.add({.grad = bytes, .count = 1}), Catch::Contains("segment"));  // no table is open
  t.open(DType::kF32, DType::kF32, DType::kF32);
  CHECK_THROWS_WITH(t.add({.grad = bytes}), Catch::Contains("0 elements"));
  t.add({.grad = bytes, .count = 4, .group = 2});
  CHECK_THROWS_WITH(t.add({.grad = bytes, .count = 4, .group = 1}), Catch::Contains("group 1 after 2"));
  t.add({.grad = bytes, .count = kSegmentTile + 1, .group = 2});
  t.add({.grad = bytes, .count = 1, .group = 3});
  CHECK_THROWS_WITH(t.upload(2, {}, *cpu.device), Catch::Contains("there are 3"));
  t.upload(9, {}, *cpu.device);
  const SegmentTable& table = t.tables().front();
  CHECK(table.tiles == 4);
  CHECK(table.elements == kSegmentTile + 6);
  CHECK(t.bytes() >= 9 * static_cast<int64_t>(sizeof(Segment)));
  for (const auto& [tile, begins] : {std::pair{0, 0}, {1, 1}, {2, 1}, {3, 3}})
    CHECK(segment_of(table.host, table.count, tile).first_tile == begins);
  CHECK_THROWS_WITH(cpu.ops->lion({.table = table}, {}), Catch::Contains("lacks a tensor"));
}

}  // namespace gt::test
