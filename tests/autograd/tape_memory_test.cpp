// Heap and device allocations of the tape: none once warm, and clear errors when it is full.
#include <atomic>
#include <cstdlib>
#include <memory>

#include "tests/autograd/tape_fixture.h"
#include "tests/support/skip.h"
#include "tests/support/test.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCountsNews = false;  // the sanitizer replaces the allocator
#else
constexpr bool kCountsNews = true;
#endif
static std::atomic<long> g_news{0};
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
__attribute__((noinline)) void* operator new(size_t n) {
  ++g_news;
  if (void* p = std::malloc(n)) return p;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* p) noexcept { std::free(p); }
__attribute__((noinline)) void operator delete(void* p, size_t) noexcept { std::free(p); }
#endif
using namespace gt;
using namespace gt::rig;

TEST_CASE("a warm forward and backward allocates nothing on the heap") {
  if (!kCountsNews) GT_SKIP("sanitizers count allocations themselves");
  TapeFixture rig(null_backend());
  std::vector<std::unique_ptr<Block>> blocks;
  for (int i = 0; i < 12; ++i) blocks.push_back(std::make_unique<Block>(rig, 1));
  const Tensor x = rig.tensor({kTokens, kHidden}, 1), dy = rig.tensor({kTokens, kHidden}, 2);
  Tape& t = rig.tape;
  const auto step = [&](How how) {
    const bool split = how == How::kSplit || how == How::kRecomputeSplit;
    Var h = t.input(x, true);
    for (auto& block : blocks) {
      Block* b = block.get();
      h = how >= How::kRecompute ? ops::recompute(t, h, [b](Tape& tape, Var v) { return (*b)(tape, v); }) : (*b)(t, h);
    }
    t.seed(h, dy);
    t.backward(0, split ? Pass::kInput : Pass::kFull);
    if (split) t.run_deferred();
    t.reset();
  };
  for (ops::Keep keep : {ops::Keep::kOutputs, ops::Keep::kInputs})
    for (How how : {How::kPlain, How::kSplit, How::kRecompute, How::kRecomputeSplit}) {
      for (auto& block : blocks) block->keep = keep;
      step(how);
      const long before = g_news;
      for (int i = 0; i < 5; ++i) step(how);
      const long allocations = g_news - before;  // before the test framework allocates its message
      INFO("mode " << static_cast<int>(how) << (keep == ops::Keep::kInputs ? " rebuilt" : ""));
      CHECK(allocations == 0);
    }
}

TEST_CASE("a full tape and a tape without gradient slots are reported") {
  TapeFixture rig(null_backend(), 4);
  const Tensor x = rig.tensor({4, 4}, 1);
  SECTION("nodes") {
    // ParamUnit nodes have no outputs, so nodes run out before slots.
    std::string log;
    Logger unit("0", &log);
    for (int i = 0; i < 4; ++i) ops::enter(rig.tape, unit);
    CHECK(rig.tape.size() == 4);
    CHECK_THROWS_WITH(ops::enter(rig.tape, unit), Catch::Contains("the tape is full at 4 nodes"));
  }
  SECTION("slots") {
    for (int i = 0; i < 4; ++i) rig.tape.input(x, true);
    CHECK_THROWS_WITH(rig.tape.input(x, true), Catch::Contains("no gradient slot left"));
    CHECK_NOTHROW(rig.tape.input(x, false));  // needs no slot
  }
  rig.tape.reset();  // and it is usable again
  CHECK_NOTHROW(ops::gelu(rig.tape, rig.tape.input(x, true)));
}

TEST_CASE("a too small arena or gradient pool is reported with the missing size") {
  const Backend& b = null_backend();
  const Stream stream{{b.kind, 0}, nullptr};
  Arena arena(Buffer(1024, stream.device, *b.device));
  Pool pool(Buffer(256, stream.device, *b.device));
  Tape t(arena, pool, *b.ops, stream);
  TapeFixture rig(b);
  const Tensor x = rig.tensor({8, 8}, 1);
  const Var in = t.input(x, true), y = ops::cast(t, ops::cast(t, in, DType::kBF16), DType::kF32);
  t.seed(y, x);
  t.backward(1);
  CHECK_THROWS_WITH(t.backward(), Catch::Contains("gradient pool of 256 bytes is full"));
  t.reset();
  const Tensor big = rig.tensor({32, 32}, 1);
  CHECK_THROWS_WITH(ops::gelu(t, t.input(big, true)), Catch::Contains("arena needs 4096 bytes of 1024"));
}
