// Self and thread backends against the common suite, and the thread backend's behaviour when ranks fail or disagree.
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>

#include "parallel/comm/call.h"
#include "parallel/comm/null_group.h"
#include "parallel/comm/self_group.h"
#include "parallel/comm/threads/thread_group.h"
#include "tests/parallel/comm_suite.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

struct SelfBackend {
  static constexpr int kRanks = 1;
  static std::vector<std::string> run(const std::function<void(GroupFactory&)>& body) {
    SelfFactory f;
    body(f);
    return {""};
  }
};
template <int N>
struct Threads {
  static constexpr int kRanks = N;
  static std::vector<std::string> run(const std::function<void(GroupFactory&)>& body) {
    return suite::run_threads(N, body);
  }
};
using Threads2 = Threads<2>;
using Threads3 = Threads<3>;
using Threads4 = Threads<4>;
using Threads8 = Threads<8>;

void require_clean(const std::vector<std::string>& errors) {
  for (const std::string& e : errors) REQUIRE(e == "");
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::vector<int> all(int n) {
  std::vector<int> v;
  for (int i = 0; i < n; ++i) v.push_back(i);
  return v;
}

}  // namespace

#define BACKENDS SelfBackend, Threads2, Threads3, Threads4, Threads8

TEMPLATE_TEST_CASE("every collective equals the serial rank-ordered reference", "", BACKENDS) {
  require_clean(TestType::run(suite::every_collective_equals_the_serial_reference));
}
TEMPLATE_TEST_CASE("large tensors equal the reference", "", SelfBackend, Threads3, Threads8) {
  require_clean(TestType::run(suite::large_tensors));
}
TEMPLATE_TEST_CASE("a shard may alias its own range of the full tensor", "", BACKENDS) {
  require_clean(TestType::run(suite::aliased_shards));
}
TEMPLATE_TEST_CASE("bf16 and f16 sums are exact where the result is", "", BACKENDS) {
  require_clean(TestType::run(suite::reductions_of_16bit_types));
}
TEMPLATE_TEST_CASE("every dtype is transferred, 16-bit types are added in f32 and rounded once", "", BACKENDS) {
  require_clean(TestType::run(suite::every_dtype_moves));
}
TEMPLATE_TEST_CASE("an all-to-all of equal and unequal parts equals the reference in every dtype", "", BACKENDS) {
  require_clean(TestType::run(suite::all_to_alls_equal_the_serial_reference));
}
TEMPLATE_TEST_CASE("a ring all-reduce sends as many bytes as the counters report", "", BACKENDS) {
  require_clean(TestType::run(suite::ring_all_reduce_sends_as_counted));
}
TEMPLATE_TEST_CASE("messages keep their order and tags do not block each other", "", BACKENDS) {
  require_clean(TestType::run(suite::messages_keep_their_order_and_tags_do_not_block));
}
TEMPLATE_TEST_CASE("work on several groups interleaves", "", BACKENDS) {
  require_clean(TestType::run(suite::interleaved_work_on_several_groups));
}
TEMPLATE_TEST_CASE("counters equal the ring formulas", "", BACKENDS) {
  require_clean(TestType::run(suite::counters_equal_the_ring_formulas));
}

TEMPLATE_TEST_CASE("500 random operations are bitwise identical with random delays", "", BACKENDS) {
  std::vector<uint64_t> calm(TestType::kRanks), delayed(TestType::kRanks);
  require_clean(TestType::run([&](GroupFactory& f) {
    calm[static_cast<size_t>(f.world_rank())] = suite::random_operations(f, 77, [](uint64_t) {});
  }));
  require_clean(TestType::run([&](GroupFactory& f) {
    delayed[static_cast<size_t>(f.world_rank())] = suite::random_operations(f, 77, suite::random_sleep);
  }));
  REQUIRE(calm == delayed);
}

TEST_CASE("a wait past the deadline names the group, the operation and the missing rank") {
  const auto errors = suite::run_threads(
      3,
      [](GroupFactory& f) {
        auto g = f.make(all(3));
        g->set_label("dp group [0,1,2]");
        g->barrier();
        suite::Block x(5, DType::kF32);
        if (f.world_rank() != 2) g->all_reduce(x.tensor, ReduceOp::kSum, {}).wait({});
      },
      std::chrono::milliseconds(100));
  for (int r : {0, 1}) {
    const std::string& e = errors[static_cast<size_t>(r)];
    INFO(e);
    REQUIRE(has(e, "dp group [0,1,2]"));
    REQUIRE(has(e, "all_reduce(sum, f32 x 5) #1"));
    REQUIRE(has(e, "not arrived: rank 2 (world rank 2), last call in this group: barrier"));
  }
  REQUIRE(errors[2] == "");
}

TEST_CASE("a deadline has exit code 124, and a missing message names its sender") {
  ThreadWorld world(2, std::chrono::milliseconds(50));
  auto f = world.factory(0);
  auto g = f->make(all(2));
  g->set_label("pp group [0,1]");
  suite::Block x(3, DType::kF32);
  Work w = g->recv(x.tensor, 1, 4, {});
  try {
    w.wait({});
    FAIL("the wait returned");
  } catch (const Error& e) {
    INFO(e.what());
    REQUIRE(e.code() == Exit::kHang);
    REQUIRE(has(e.what(), "pp group [0,1]"));
    REQUIRE(has(e.what(), "recv(f32 x 3, rank 1, tag 4)"));
    REQUIRE(has(e.what(), "rank 1 (world rank 1) has not made the matching call, no call in this group yet"));
  }
  REQUIRE(world.failed_rank() == 0);
}

TEST_CASE("calls that differ between ranks are an error that names both", "[R13]") {
  using Body = std::function<void(ProcessGroup&)>;
  const Body four = [&](ProcessGroup& g) {
    suite::Block b(4, DType::kF32);
    g.all_reduce(b.tensor, ReduceOp::kSum, {}).wait({});
  };
  const Body others[] = {[](ProcessGroup& g) {
                           suite::Block b(6, DType::kF32);
                           g.all_reduce(b.tensor, ReduceOp::kSum, {}).wait({});
                         },
                         [](ProcessGroup& g) {
                           suite::Block b(4, DType::kI32);
                           g.all_reduce(b.tensor, ReduceOp::kSum, {}).wait({});
                         },
                         [](ProcessGroup& g) {
                           suite::Block b(4, DType::kF32);
                           g.all_reduce(b.tensor, ReduceOp::kMax, {}).wait({});
                         },
                         [](ProcessGroup& g) {
                           suite::Block b(4, DType::kF32);
                           g.broadcast(b.tensor, 0, {}).wait({});
                         },
                         [](ProcessGroup& g) { g.barrier(); }};
  const char* names[] = {"all_reduce(sum, f32 x 6)", "all_reduce(sum, i32 x 4)", "all_reduce(max, f32 x 4)",
                         "broadcast(f32 x 4, root 0)", "barrier"};
  for (int k = 0; k < 5; ++k) {
    const auto errors = suite::run_threads(2, [&](GroupFactory& f) {
      auto g = f.make(all(2));
      g->set_label("tp group [0,1]");
      f.world_rank() == 0 ? four(*g) : others[k](*g);
    });
    for (const std::string& e : errors) {
      INFO(e);
      REQUIRE(has(e, "tp group [0,1]: collective #0 differs between ranks"));
      REQUIRE(has(e, "rank 0 (world rank 0) called all_reduce(sum, f32 x 4)"));
      REQUIRE(has(e, cat("rank 1 (world rank 1) called ", names[k])));
    }
  }
  const auto errors = suite::run_threads(2, [&](GroupFactory& f) {
    auto g = f.make(all(2));
    suite::Block b(f.world_rank() + 1, DType::kF32);
    (f.world_rank() == 0 ? g->send(b.tensor, 1, 0, {}) : g->recv(b.tensor, 0, 0, {})).wait({});
  });
  for (const std::string& e : errors) {
    INFO(e);
    REQUIRE(has(e, "send(f32 x 1, rank 1, tag 0)"));
    REQUIRE(has(e, "recv(f32 x 2, rank 0, tag 0)"));
  }
}

TEST_CASE("parts of an all-to-all that differ between two ranks are an error that names both, on every rank", "[R13]") {
  std::string found[3];
  require_clean(suite::run_threads(3, [&](GroupFactory& f) { found[f.world_rank()] = suite::parts_that_differ(f); }));
  for (const std::string& e : found) {
    INFO(e);
    CHECK(
        has(e, "suite world: collective #0 differs between ranks: rank 0 sends 5 elements to rank 1, which expects 6"));
  }
  // Equal parts of other sizes are other calls.
  const auto errors = suite::run_threads(2, [](GroupFactory& f) {
    auto g = f.make(all(2));
    suite::Block x(f.world_rank() == 0 ? 4 : 6, DType::kF32), y(f.world_rank() == 0 ? 4 : 6, DType::kF32);
    g->all_to_all(x.tensor, y.tensor, {}, {}).wait({});
  });
  for (const std::string& e : errors) {
    INFO(e);
    CHECK((has(e, "rank 0 (world rank 0) called all_to_all(f32 x 4)") && has(e, "called all_to_all(f32 x 6)")));
  }
}

TEST_CASE("an all-to-all that a rank does not join names the call and that rank") {
  const auto errors = suite::run_threads(
      2,
      [](GroupFactory& f) {
        auto g = f.make(all(2));
        const std::vector<int64_t> none{0, 0};
        suite::Block x(0, DType::kBF16), y(0, DType::kBF16);
        if (f.world_rank() == 0) g->all_to_all(x.tensor, y.tensor, {none, none}, {}).wait({});
      },
      std::chrono::milliseconds(100));
  INFO(errors[0]);
  CHECK(has(errors[0], "in all_to_all_v(bf16 x 0) #0; not arrived: rank 1 (world rank 1)"));
}

TEST_CASE("a plan counts what an all-to-all sends to other ranks, also beyond 2^31 elements") {
  const Device nowhere{DeviceKind::kNull, 0};
  NullFactory f(1, 4);
  const auto g = f.make(all(4));
  const Tensor equal{nullptr, {int64_t{12} << 30}, DType::kBF16, nowhere};
  g->all_to_all(equal, equal, {}, {}).wait({});
  CHECK(g->counters().bytes(CommOp::kAllToAll) == (int64_t{12} << 30) * 2 * 3 / 4);
  const std::vector<int64_t> sends{3, int64_t{3} << 20, 0, int64_t{5} << 20}, receives{0, int64_t{3} << 20, 7, 1};
  const Tensor send{nullptr, {3 + (int64_t{8} << 20), 4096}, DType::kBF16, nowhere};
  const Tensor recv{nullptr, {8 + (int64_t{3} << 20), 4096}, DType::kBF16, nowhere};
  g->all_to_all(send, recv, {sends, receives, 4096}, {}).wait({});
  CHECK(g->counters().bytes(CommOp::kAllToAllV) == (3 + (int64_t{5} << 20)) * 4096 * 2);
  CHECK(g->counters().total() == g->counters().bytes(CommOp::kAllToAll) + g->counters().bytes(CommOp::kAllToAllV));
  PeerOffsets offsets;
  offsets.set(all_to_all_call(*g, send, recv, {sends, receives, 4096}), {sends, receives, 4096}, 4);
  CHECK(offsets.send[2] == (3 + (int64_t{3} << 20)) * 4096);
  CHECK(offsets.send[3] == offsets.send[2]);
  CHECK(offsets.expects(2) == 7 * 4096);
}

TEST_CASE("when one rank throws, the others wake with its number and message") {
  for (int bad = 0; bad < 4; ++bad) {
    const auto errors = suite::run_threads(4, [&](GroupFactory& f) {
      auto g = f.make(all(4));
      suite::Block x(100000, DType::kF32);
      for (int i = 0; i < 3; ++i) g->all_reduce(x.tensor, ReduceOp::kSum, {}).wait({});
      if (f.world_rank() == bad) fail(Exit::kNumerical, "loss is not finite");
      g->all_reduce(x.tensor, ReduceOp::kSum, {}).wait({});
    });
    for (int r = 0; r < 4; ++r) {
      const std::string expected =
          r == bad ? "loss is not finite" : cat("rank ", bad, " failed first: loss is not finite");
      REQUIRE(errors[static_cast<size_t>(r)] == expected);
    }
  }
}

TEST_CASE("ranks may run far ahead: the number of outstanding collectives is not limited") {
  require_clean(suite::run_threads(3, [](GroupFactory& f) {
    auto g = f.make(all(3));
    std::vector<suite::Block> blocks;
    for (int i = 0; i < 200; ++i)
      blocks.push_back(suite::make_input(7, DType::kI64, static_cast<uint64_t>(i), f.world_rank()));
    std::vector<Work> works;
    if (f.world_rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    for (auto& b : blocks) works.push_back(g->all_reduce(b.tensor, ReduceOp::kSum, {}));
    for (size_t i = works.size(); i-- > 0;) works[i].wait({});  // any order of waiting
    for (size_t i = 0; i < blocks.size(); ++i) {
      const auto expected = suite::reference_reduce(7, DType::kI64, i, 3, ReduceOp::kSum);
      GT_CHECK(std::memcmp(expected.tensor.data, blocks[i].tensor.data, 56) == 0, "collective ", i);
    }
  }));
}

TEST_CASE("lists that do not partition the world and lists without their caller are refused") {
  std::atomic<int> calls{0};
  const auto errors = suite::run_threads(3, [&](GroupFactory& f) {
    struct Counted {
      std::atomic<int>& n;
      ~Counted() { ++n; }
    };
    std::unique_ptr<ProcessGroup> held;  // until all have requested theirs: a group that was created and destroyed
                                         // leaves no trace
    {
      Counted counted{calls};
      held = f.make(f.world_rank() == 0 ? std::vector<int>{0, 1} : std::vector<int>{1, 2});
    }
    while (calls < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  std::string text;
  for (const auto& e : errors) text += e;
  INFO(text);
  REQUIRE(has(text, "must partition the world"));
  ThreadWorld world(3, std::chrono::seconds(1));
  REQUIRE_THROWS_WITH(world.factory(0)->make(std::vector<int>{1, 2}),
                      Catch::Contains("rank 0 of 3 requests the group [1,2]"));
}

TEST_CASE("a rank that abandons its calls may free their buffers: the others throw and do not touch them") {
  std::atomic<bool> posted{false}, freed{false};
  const auto errors = suite::run_threads(2, [&](GroupFactory& f) {
    auto g = f.make(all(2));
    auto mine = std::make_unique<suite::Block>(1 << 20, DType::kF32);
    Work sum = g->all_reduce(mine->tensor, ReduceOp::kSum, {});
    [[maybe_unused]] Work message = f.world_rank() == 0 ? g->send(mine->tensor, 1, 0, {}) : Work();
    if (f.world_rank() == 0) {
      while (!posted) std::this_thread::yield();
      g->abandon("the disk is full", Exit::kIo);
      mine.reset();
      freed = true;
      return;
    }
    posted = true;
    while (!freed) std::this_thread::yield();
    CHECK_THROWS_WITH(sum.wait({}), Catch::Contains("rank 0 failed first: the disk is full"));
    CHECK_THROWS_WITH(g->recv(mine->tensor, 0, 0, {}), Catch::Contains("the disk is full"));
  });
  for (const std::string& e : errors) CHECK(e == "");
}

TEST_CASE("tensors that do not fit the group are refused before anything is sent") {
  ThreadWorld world(2, std::chrono::seconds(1));
  auto f = world.factory(0);
  auto g = f->make(all(2));
  suite::Block a(3, DType::kF32), b(7, DType::kF32), c(6, DType::kF64), h(4, DType::kU16);
  REQUIRE_THROWS_WITH(g->all_gather(a.tensor, b.tensor, {}), Catch::Contains("needs a full tensor of 6 elements"));
  REQUIRE_THROWS_WITH(g->reduce_scatter(c.tensor, a.tensor, {}), Catch::Contains("f32 shard and a f64 full tensor"));
  REQUIRE_THROWS_WITH(g->all_reduce(h.tensor, ReduceOp::kSum, {}), Catch::Contains("cannot sum u16"));
  REQUIRE_THROWS_WITH(g->broadcast(a.tensor, 2, {}), Catch::Contains("names rank 2 of a group of 2"));
  REQUIRE_THROWS_WITH(g->send(a.tensor, 0, 0, {}), Catch::Contains("rank 0 and itself"));
  suite::Block d(6, DType::kF32), s(6, DType::kF32);
  const auto refused = [&](const Tensor& from, const Tensor& to, std::vector<int64_t> sends,
                           std::vector<int64_t> receives, const char* why) {
    REQUIRE_THROWS_WITH(g->all_to_all(from, to, {sends, receives}, {}), Catch::Contains(why));
  };
  refused(a.tensor, d.tensor, {}, {}, "all_to_all of 3 elements into 6; both must be one multiple of 2 ranks");
  refused(d.tensor, c.tensor, {}, {}, "all_to_all of f32 into f64");
  refused(d.tensor, d.tensor, {}, {}, "within one memory");
  refused(d.tensor, s.tensor, {6}, {3, 3}, "with 1 send counts in a group of 2 ranks");
  refused(d.tensor, s.tensor, {7, -1}, {3, 3}, "a send count of -1 x 1 elements for rank 1");
  refused(d.tensor, s.tensor, {3, 2}, {3, 3}, "counts of 5 and 6 elements needs tensors of so many, found 6 and 6");
  refused(d.tensor, s.tensor, {2, 4}, {3, 3}, "rank 0 sends 2 elements to rank 0, which expects 3");
  refused(d.tensor, s.tensor, {int64_t{1} << 62, int64_t{1} << 62}, {3, 3}, "a send count of 4611686018427387904");
  Tensor cuda = a.tensor;
  cuda.device.kind = DeviceKind::kCuda;
  REQUIRE_THROWS_WITH(g->all_reduce(cuda, ReduceOp::kSum, {}), Catch::Contains("host memory only"));
}
