// From its third step on a training step takes no heap memory, on any rank of any layout.
#include <cstdlib>
#include <new>
#include <thread>

#include "launch/engine.h"
#include "parallel/comm/thread_group.h"
#include "tests/support/test.h"

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

namespace {

// Allocations of one warm step on each rank, threads of this process.
std::vector<int64_t> warm_step(EngineOptions o, MeshShape shape) {
  o.model = {.layers = 4, .hidden = 16, .heads = 4, .ffn = 32, .vocab = 60, .seq = 8, .recompute = o.model.recompute};
  o.micro_batch = 2;
  o.microbatches = 3;
  std::vector<int64_t> counts(static_cast<size_t>(shape.world()), -1);
  std::vector<std::string> errors(counts.size());
  ThreadWorld ranks(shape.world(), std::chrono::seconds(60));
  std::vector<std::thread> team;
  for (int r = 0; r < shape.world(); ++r)
    team.emplace_back([&, r] {
      try {
        auto factory = ranks.factory(r);
        const Mesh mesh(shape, *factory);
        const Stream stream = cpu_backend().device->open_stream(0, 1);
        {
          Engine engine(o, mesh, cpu_backend(), stream, plan_memory(o, shape, r));
          engine.init_weights();
          std::vector<int32_t> tokens(static_cast<size_t>(o.micro_batch * o.model.seq), 7);
          MicroBatch mb;
          mb.batch = o.micro_batch;
          mb.seq = o.model.seq;
          mb.tokens = mb.targets = {reinterpret_cast<std::byte*>(tokens.data()), {mb.batch, mb.seq}, DType::kI32, {}};
          const std::vector<MicroBatch> batch(static_cast<size_t>(o.microbatches), mb);
          for (int k = 0; k < 2; ++k) engine.step(batch, 48);
          allocations = 0;
          counting = true;
          ::operator delete(::operator new(1));  // the counter counts
          engine.step(batch, 48);
          counting = false;
          counts[static_cast<size_t>(r)] = allocations;
        }
        cpu_backend().device->close_stream(stream);
      } catch (const std::exception& e) {
        counting = false;
        errors[static_cast<size_t>(r)] = e.what();
        ranks.abort(r, e.what());
      }
    });
  for (std::thread& t : team) t.join();
  for (const std::string& e : errors) CHECK(e == "");
  return counts;
}

}  // namespace

TEST_CASE("a warm training step allocates nothing on any rank") {
  for (const MeshShape shape : {MeshShape{}, MeshShape{.dp = 2}, MeshShape{.tp = 2}, MeshShape{.pp = 2, .dp = 2, .tp = 2},
                                MeshShape{.pp = 2, .tp = 4}})
    for (const bool sequence_parallel : {false, true})
      for (const char* schedule : {"1f1b", "zb-h1"})
        for (const Recompute how : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
          if (shape.tp == 1 && sequence_parallel) continue;
          INFO("tp " << shape.tp << " pp " << shape.pp << " dp " << shape.dp << " sequence parallel "
                     << sequence_parallel << ' ' << schedule << " recompute " << static_cast<int>(how));
          EngineOptions o;
          o.schedule = schedule;
          o.sequence_parallel = sequence_parallel;
          o.model.recompute = how;
          CHECK(warm_step(o, shape) == std::vector<int64_t>(static_cast<size_t>(shape.world()), kCounted));
        }
}
