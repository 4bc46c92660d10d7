// The communication suite on MPI ranks. Run under mpirun (see CMakeLists.txt). Without a launcher the program only lists.
#include <cstdlib>

#include "parallel/comm/mpi_group.h"
#include "tests/parallel/comm_suite.h"
#include "tests/parallel_mpi/mpi_main.h"
#include "tests/support/test.h"

using namespace gt;

TEST_CASE("every collective equals the serial rank-ordered reference, so MPI equals threads bit for bit") {
  REQUIRE_NOTHROW(suite::every_collective_equals_the_serial_reference(mpi_factory()));
}
TEST_CASE("large tensors equal the reference") { REQUIRE_NOTHROW(suite::large_tensors(mpi_factory())); }
TEST_CASE("a shard may be its own place in the full tensor") { REQUIRE_NOTHROW(suite::aliased_shards(mpi_factory())); }
TEST_CASE("bf16 and f16 sums are exact where the result is") { REQUIRE_NOTHROW(suite::half_precision_reductions(mpi_factory())); }
TEST_CASE("messages keep their order and tags do not block each other") {
  REQUIRE_NOTHROW(suite::messages_keep_their_order_and_tags_do_not_block(mpi_factory()));
}
TEST_CASE("work on several groups interleaves") { REQUIRE_NOTHROW(suite::interleaved_work_on_several_groups(mpi_factory())); }
TEST_CASE("counters equal the ring formulas") { REQUIRE_NOTHROW(suite::counters_equal_the_ring_formulas(mpi_factory())); }
TEST_CASE("500 random operations give the same bits with random delays, and the same as threads") {
  const uint64_t calm = suite::random_operations(mpi_factory(), 77, [](uint64_t) {});
  REQUIRE(calm == suite::random_operations(mpi_factory(), 77, suite::random_sleep));
  REQUIRE(calm == suite::random_operations_on_threads(mpi_factory().world_size(), 77, mpi_factory().world_rank()));
}
TEST_CASE("all ranks of one machine count as local") {
  REQUIRE(mpi_factory().local_size() == mpi_factory().world_size());
  REQUIRE(mpi_factory().local_rank() == mpi_factory().world_rank());
}
TEST_CASE("a message of another size than expected names the call and the sender") {
  std::vector<int> all;
  for (int r = 0; r < mpi_factory().world_size(); ++r) all.push_back(r);
  auto g = mpi_factory().make(all);
  g->set_label("pp group of the test");
  suite::Block x(g->rank() == 0 ? 4 : 9, DType::kF32);
  if (g->rank() == 0) g->send(x.tensor, 1, 2, {}).wait({});
  if (g->rank() == 1) {
    REQUIRE_THROWS_WITH(g->recv(x.tensor, 0, 2, {}).wait({}), Catch::Contains("pp group of the test") &&
                        Catch::Contains("recv(f32 x 9, rank 0, tag 2)") && Catch::Contains("16"));
  }
}
TEST_CASE("a wait past the deadline names the group, the call and the rank that is missing") {
  std::vector<int> all;
  for (int r = 0; r < mpi_factory().world_size(); ++r) all.push_back(r);
  auto later = mpi_factory().make(all);
  MpiFactory impatient(std::chrono::milliseconds(100));  // MPI runs already and outlives this factory
  auto g = impatient.make(all);
  g->set_label("dp group of the test");
  suite::Block x(5, DType::kF32);
  if (g->rank() != 1) {  // everybody but rank 1 arrives
    Work w = g->all_reduce(x.tensor, ReduceOp::kSum, {});
    try {
      w.wait({});
      FAIL("the wait returned");
    } catch (const Error& e) {
      INFO(e.what());
      REQUIRE(e.code() == Exit::kHang);
      REQUIRE_THAT(e.what(), Catch::Contains("dp group of the test: rank") && Catch::Contains("all_reduce(sum, f32 x 5) #0") &&
                                 Catch::Contains("nothing from ranks [1]"));
    }
  }
  later->barrier();
  if (g->rank() == 1) g->all_reduce(x.tensor, ReduceOp::kSum, {}).wait({});  // late, so that nothing is left behind
  later->barrier();
}
