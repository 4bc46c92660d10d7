// Ranks that are threads of one process: shared memory, rank-ordered reductions, no MPI. A call posts its buffers and
// returns; whoever waits first, after all ranks have posted, does the copying and adding, so no rank needs to make
// progress for others. Waits sleep. Every wait has a deadline.
#pragma once
#include <chrono>
#include <string>

#include "kernels/core/check.h"
#include "parallel/comm/process_group.h"

namespace gt {

// What the rank threads share. Must outlive every factory and group made from it.
//
//   ThreadWorld world(4, std::chrono::seconds(60));
//   on thread r:  try { auto f = world.factory(r); Mesh mesh(shape, *f); … } catch (const Error& e) { world.abort(r,
//   e.what(), e.code()); }
//
// Errors thrown by waits: kHang after `deadline` (group, operation, sequence number, and who has not arrived with their
// last call); calls that do not match (both ranks and calls), by the rank that comes second, at once. Either ends the
// world.
class ThreadWorld {
 public:
  ThreadWorld(int ranks, std::chrono::milliseconds deadline);
  ~ThreadWorld();
  ThreadWorld(const ThreadWorld&) = delete;
  ThreadWorld& operator=(const ThreadWorld&) = delete;

  int size() const;
  const CommBoard& board() const;
  // For the thread of that rank, and only that thread.
  std::unique_ptr<GroupFactory> factory(int rank);

  // Wakes everybody: every wait and every call from now on throws an Error with `code` that names the first failing
  // rank and its message. The first caller wins. Returns when no other rank reads or writes anybody's buffers any more,
  // so call it before freeing them where possible.
  void abort(int rank, const std::string& message, Exit code = Exit::kInternal);
  int failed_rank() const;  // the first rank that called abort, -1: none

  struct Shared;

 private:
  std::unique_ptr<Shared> shared_;
};

}  // namespace gt
