// Device tensors over a host-memory backend, against the common suite.
#include <cstring>

#include "parallel/comm/gpu/staged_group.h"
#include "tests/parallel/comm_suite.h"
#include "tests/parallel/device_memory.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

void on_ranks(int ranks, const std::function<void(GroupFactory&)>& body) {
  for (const std::string& error : suite::run_threads(ranks, [&](GroupFactory& f) {
         MarkedFactory marked(std::make_unique<StagedFactory>(f, plain_device(), 0));
         body(marked);
       }))
    REQUIRE(error == "");
  CHECK(host_blocks_held() == 0);
}

}  // namespace

TEST_CASE("through pinned memory every collective equals the serial rank-ordered reference") {
  suite::everything(on_ranks);
}

TEST_CASE("through pinned memory 500 random operations are bitwise those without staging") {
  CHECK(suite::random_operations_agree_with_threads(on_ranks));
}

TEST_CASE("pinned blocks are reused") {
  const int64_t before = host_blocks_made();
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
  CHECK(host_blocks_made() - before == 2 * 2);  // two in flight on each of two ranks
}
