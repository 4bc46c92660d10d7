// Device tensors over a backend of host memory, against the common suite: memory that calls itself a GPU's.
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "parallel/comm/staged_group.h"
#include "tests/parallel/comm_suite.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

std::atomic<int64_t> blocks{0}, held{0};

const DeviceApi& fake_device() {
  static const DeviceApi api = [] {
    DeviceApi a;
    a.alloc_host = [](int64_t n) -> void* { return ++blocks, ++held, std::malloc(static_cast<size_t>(n)); };
    a.free_host = [](void* p, int64_t) { --held, std::free(p); };
    a.copy = [](void* to, const void* from, int64_t n, Stream) { std::memmove(to, from, static_cast<size_t>(n)); };
    a.synchronize = [](Stream) {};
    a.make_event = [](int) -> Event { return nullptr; };
    a.drop_event = [](Event) {};
    a.record = [](Event, Stream) {};
    a.done = [](Event) { return true; };
    return a;
  }();
  return api;
}

Tensor on_device(Tensor t) {
  t.device.kind = DeviceKind::kCuda;
  return t;
}

// What the suite gives as host tensors goes on as device tensors.
class Marked final : public ProcessGroup {
 public:
  explicit Marked(std::unique_ptr<ProcessGroup> g) : ProcessGroup(g->rank(), g->size()), g_(std::move(g)) {}
  std::string_view backend() const override { return g_->backend(); }
  const CommCounters& counters() const override { return g_->counters(); }
  const std::string& label() const override { return g_->label(); }
  void set_label(std::string label) override { g_->set_label(std::move(label)); }
  Work all_reduce(Tensor t, ReduceOp op, Stream s) override { return g_->all_reduce(on_device(t), op, s); }
  Work all_gather(Tensor a, Tensor b, Stream s) override { return g_->all_gather(on_device(a), on_device(b), s); }
  Work reduce_scatter(Tensor a, Tensor b, Stream s) override {
    return g_->reduce_scatter(on_device(a), on_device(b), s);
  }
  Work broadcast(Tensor t, int root, Stream s) override { return g_->broadcast(on_device(t), root, s); }
  Work send(Tensor t, int to, int tag, Stream s) override { return g_->send(on_device(t), to, tag, s); }
  Work recv(Tensor t, int from, int tag, Stream s) override { return g_->recv(on_device(t), from, tag, s); }
  void barrier() override { g_->barrier(); }
  void poll() override { g_->poll(); }

 protected:
  void wait(uint64_t, Stream) override {}

 private:
  std::unique_ptr<ProcessGroup> g_;
};

class MarkedFactory final : public GroupFactory {
 public:
  explicit MarkedFactory(GroupFactory& inner) : staged_(inner, fake_device(), 0) {}
  int world_rank() const override { return staged_.world_rank(); }
  int world_size() const override { return staged_.world_size(); }
  int local_rank() const override { return staged_.local_rank(); }
  int local_size() const override { return staged_.local_size(); }
  std::string_view backend() const override { return staged_.backend(); }
  std::unique_ptr<ProcessGroup> make(std::span<const int> ranks) override {
    return std::make_unique<Marked>(staged_.make(ranks));
  }

 private:
  StagedFactory staged_;
};

void on_ranks(int ranks, const std::function<void(GroupFactory&)>& body) {
  for (const std::string& error : suite::run_threads(ranks, [&](GroupFactory& f) {
         MarkedFactory marked(f);
         body(marked);
       }))
    REQUIRE(error == "");
  CHECK(held == 0);
}

}  // namespace

TEST_CASE("through pinned memory every collective equals the serial rank-ordered reference") {
  for (const int ranks : {1, 2, 3, 4}) {
    on_ranks(ranks, suite::every_collective_equals_the_serial_reference);
    on_ranks(ranks, suite::aliased_shards);
    on_ranks(ranks, suite::every_dtype_moves);
    on_ranks(ranks, suite::messages_keep_their_order_and_tags_do_not_block);
    on_ranks(ranks, suite::interleaved_work_on_several_groups);
    on_ranks(ranks, suite::counters_equal_the_ring_formulas);
  }
  on_ranks(3, suite::large_tensors);
}

TEST_CASE("through pinned memory 500 random operations give the bits of ranks without") {
  std::atomic<uint64_t> first{0};
  on_ranks(4, [&](GroupFactory& f) {
    const uint64_t hash = suite::random_operations(f, 7, suite::random_sleep);
    if (f.world_rank() == 0) first = hash;
  });
  CHECK(first == suite::random_operations_on_threads(4, 7, 0));
}

TEST_CASE("pinned blocks are used again") {
  blocks = 0;
  on_ranks(2, [](GroupFactory& f) {
    const std::vector<int> both{0, 1};
    const auto g = f.make(both);
    suite::Block a(1000, DType::kF32), b(9, DType::kF32);
    std::memset(a.bytes.data(), 0, a.bytes.size());
    std::memset(b.bytes.data(), 0, b.bytes.size());
    for (int k = 0; k < 50; ++k) {
      Work large = g->all_reduce(a.tensor, ReduceOp::kSum, {});
      g->all_reduce(b.tensor, ReduceOp::kSum, {}).wait({});
      large.wait({});
    }
  });
  CHECK(blocks == 2 * 2);  // two in flight on each of two ranks
}
