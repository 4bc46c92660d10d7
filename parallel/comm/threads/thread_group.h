// Ranks as threads of one process: shared memory, rank-ordered reductions, no MPI. A call posts its buffers and
// returns. After all ranks have posted, the first waiter copies and adds, so no rank needs to make progress for others.
// Waits sleep. Every wait has a deadline.
#pragma once
#include <chrono>
#include <string>

#include "kernels/core/check.h"
#include "parallel/comm/process_group.h"

namespace gt {

// State shared by the rank threads. Must outlive every factory and group made from it.
//
//   ThreadWorld world(4, std::chrono::seconds(60));
//   on thread r:  try { auto f = world.factory(r); Mesh mesh(shape, *f); … }
//                 catch (const Error& e) { world.abort(r, e.what(), e.code()); }
//
// Waits throw kHang after `deadline`, with group, operation, sequence number and the missing ranks with their last
// calls. Calls that do not match throw at once on the rank that comes second, naming both ranks and calls. Either ends
// the world.
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

  // Wakes all ranks: every wait and every later call throws an Error with `code` that names the first failing rank and
  // its message. The first caller wins. Returns once no rank accesses another rank's buffers, so call it before
  // freeing them where possible.
  void abort(int rank, const std::string& message, Exit code = Exit::kInternal);
  int failed_rank() const;  // the first rank that called abort, -1: none

  struct Shared;

 private:
  std::unique_ptr<Shared> shared_;
};

}  // namespace gt
