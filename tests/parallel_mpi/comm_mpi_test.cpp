// The communication suite on MPI ranks. Run under mpirun (see CMakeLists.txt); without a launcher the program only
// lists its tests.
#include <cstdlib>

#include "parallel/comm/messages/mpi_group.h"
#include "tests/parallel/comm_suite.h"
#include "tests/parallel_mpi/mpi_main.h"
#include "tests/support/test.h"

using namespace gt;

namespace {
// With large collectives through shared memory, and with everything as messages.
void on_both(void (*part)(GroupFactory&)) {
  REQUIRE_NOTHROW(part(mpi_factory()));
  MpiFactory messages(std::chrono::seconds(60), false);
  REQUIRE_NOTHROW(part(messages));
}
}  // namespace

TEST_CASE("every collective equals the serial rank-ordered reference, so MPI is bitwise identical to threads") {
  on_both(suite::every_collective_equals_the_serial_reference);
}
TEST_CASE("large tensors equal the reference") { on_both(suite::large_tensors); }
TEST_CASE("a shard may alias its own range of the full tensor") { on_both(suite::aliased_shards); }
TEST_CASE("bf16 and f16 sums are exact where the result is") {
  REQUIRE_NOTHROW(suite::reductions_of_16bit_types(mpi_factory()));
}
TEST_CASE("every dtype is transferred, 16-bit types are added in f32 and rounded once") {
  on_both(suite::every_dtype_moves);
}
TEST_CASE("an all-to-all of equal and unequal parts equals the reference in every dtype") {
  on_both(suite::all_to_alls_equal_the_serial_reference);
}
TEST_CASE("parts of an all-to-all that differ are an error of the ranks that disagree") {
  const int me = mpi_factory().world_rank();
  const std::string in_memory = suite::parts_that_differ(mpi_factory());
  CHECK_THAT(in_memory, Catch::Contains(me < 2 ? "rank 0 sends 5 elements to rank 1, which expects 6" : ""));
  CHECK(in_memory.empty() == (me > 1));
  MpiFactory messages(std::chrono::seconds(60), false);
  const std::string sent = suite::parts_that_differ(messages);
  CHECK_THAT(sent, Catch::Contains(me == 1 ? "#0 and expected 24 bytes from rank 0, which sent 20" : ""));
  CHECK(sent.empty() == (me != 1));
}
TEST_CASE("a ring all-reduce sends as many bytes as the counters report") {
  REQUIRE_NOTHROW(suite::ring_all_reduce_sends_as_counted(mpi_factory()));
}
TEST_CASE("messages keep their order and tags do not block each other") {
  REQUIRE_NOTHROW(suite::messages_keep_their_order_and_tags_do_not_block(mpi_factory()));
}
TEST_CASE("work on several groups interleaves") { on_both(suite::interleaved_work_on_several_groups); }
TEST_CASE("counters equal the ring formulas") {
  REQUIRE_NOTHROW(suite::counters_equal_the_ring_formulas(mpi_factory()));
}
TEST_CASE("500 random operations are bitwise identical with random delays, and identical to threads") {
  const uint64_t calm = suite::random_operations(mpi_factory(), 77, [](uint64_t) {});
  REQUIRE(calm == suite::random_operations(mpi_factory(), 77, suite::random_sleep));
  MpiFactory messages(std::chrono::seconds(60), false);
  REQUIRE(calm == suite::random_operations(messages, 77, [](uint64_t) {}));
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
                                                                  Catch::Contains("recv(f32 x 9, rank 0, tag 2)") &&
                                                                  Catch::Contains("16"));
  }
}
namespace {
std::vector<int> everyone() {
  std::vector<int> all;
  for (int r = 0; r < mpi_factory().world_size(); ++r) all.push_back(r);
  return all;
}
}  // namespace

TEST_CASE("a wait past the deadline names the group, the call and the missing rank") {
  auto later = mpi_factory().make(everyone());
  for (int n : {5, 5000}) {                                // messages, and the shared memory of the machine
    MpiFactory impatient(std::chrono::milliseconds(100));  // MPI runs already and outlives this factory
    auto g = impatient.make(everyone());
    g->set_label("dp group of the test");
    suite::Block x(n, DType::kF32);
    if (g->rank() != 1) {  // all but rank 1 enter the call
      Work w = g->all_reduce(x.tensor, ReduceOp::kSum, {});
      try {
        w.wait({});
        FAIL("the wait returned");
      } catch (const Error& e) {
        INFO(e.what());
        REQUIRE(e.code() == Exit::kHang);
        REQUIRE_THAT(e.what(), Catch::Contains("dp group of the test: rank") &&
                                   Catch::Contains("nothing from ranks [1]") &&
                                   Catch::Contains("; rank 1: no call in this group yet") &&
                                   Catch::Contains(cat("all_reduce(sum, f32 x ", n, ") #0")));
      }
    }
    later->barrier();
    if (g->rank() == 1 && n == 5) g->all_reduce(x.tensor, ReduceOp::kSum, {}).wait({});  // leaves no message behind
    later->barrier();
  }
}

TEST_CASE("large collectives that differ between ranks are an error on every rank that names both") {
  auto g = mpi_factory().make(everyone());
  g->set_label("tp group of the test");
  suite::Block x(5001, DType::kF32);
  const int64_t mine = g->rank() == 1 ? 5001 : 5000;
  REQUIRE_THROWS_WITH(g->all_reduce(x.tensor.slice(0, mine), ReduceOp::kSum, {}).wait({}),
                      Catch::Contains("tp group of the test: ") && Catch::Contains("differs between ranks") &&
                          Catch::Contains("all_reduce(sum, f32 x 5001)") &&
                          Catch::Contains("all_reduce(sum, f32 x 5000)"));
}
