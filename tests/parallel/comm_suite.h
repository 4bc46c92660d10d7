// One suite for every communication backend. Each function runs on one rank and throws on the first wrong element. It
// can thus run on threads, where Catch2 assertions are not allowed, and under mpirun. Inputs are pure functions of
// (rank, call, element): every rank computes what all others sent and compares with a serial, rank-ordered reference.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "parallel/comm/process_group.h"

namespace gt::suite {

// Host memory for tests, with a typed view.
struct Block {
  Block(int64_t n, DType t) : bytes(static_cast<size_t>(n * size_of(t)) + 64), tensor{bytes.data(), {n}, t, {}} {}
  Block(Block&&) = default;
  std::vector<std::byte> bytes;
  Tensor tensor;
};

// Runs body on `ranks` threads of a ThreadWorld. Returns each rank's error text, empty if it had none.
std::vector<std::string> run_threads(int ranks, const std::function<void(GroupFactory&)>& body,
                                     std::chrono::milliseconds deadline = std::chrono::seconds(60));

Block make_input(int64_t n, DType, uint64_t call, int rank);
// ((x0 + x1) + x2) + … element by element.
Block reference_reduce(int64_t n, DType, uint64_t call, int ranks, ReduceOp);

void every_collective_equals_the_serial_reference(GroupFactory&);
void large_tensors(GroupFactory&);
void aliased_shards(GroupFactory&);
void reductions_of_16bit_types(GroupFactory&);
void every_dtype_moves(GroupFactory&);
// Equal and unequal parts, of every dtype; parts, tensors and whole calls without elements.
void all_to_alls_equal_the_serial_reference(GroupFactory&);
// Returns the error text of an all_to_all in which rank 0 sends 5 elements to rank 1, which expects 6; "" on a rank
// that completes it. At least two ranks.
std::string parts_that_differ(GroupFactory&);
// All-reduce as 2(N-1) messages around a ring, in one fixed order: the reference for the bytes a rank sends.
void ring_all_reduce_sends_as_counted(GroupFactory&);
void messages_keep_their_order_and_tags_do_not_block(GroupFactory&);
void interleaved_work_on_several_groups(GroupFactory&);
void counters_equal_the_ring_formulas(GroupFactory&);
// Runs 500 operations drawn from a seed, several in flight; `delay` is called between them. Returns a hash of every
// result.
uint64_t random_operations(GroupFactory&, uint64_t seed, const std::function<void(uint64_t)>& delay);
void random_sleep(uint64_t bits);  // up to 1 ms, one time in four
// The hash that rank `rank` of a thread world returns.
uint64_t random_operations_on_threads(int ranks, uint64_t seed, int rank);

// Runs a body on `ranks` ranks of the backend under test; fails if one of them throws.
using OnRanks = std::function<void(int ranks, const std::function<void(GroupFactory&)>& body)>;
void everything(const OnRanks&);                            // all functions above, on 1 to 4 ranks
bool random_operations_agree_with_threads(const OnRanks&);  // on 4 ranks

}  // namespace gt::suite
