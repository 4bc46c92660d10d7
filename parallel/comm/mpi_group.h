// Ranks as processes, connected by MPI. Collectives are built on Isend/Irecv, large ones inside a machine on shared
// memory. Sums are in rank order, bitwise identical to the thread backend. MPI makes no progress outside its own calls:
// poll() and every wait advance all outstanding work of this rank, in all groups.
#pragma once
#include <chrono>
#include <memory>

#include "parallel/comm/process_group.h"
#include "parallel/comm/side_channel.h"

namespace gt {

// Initializes MPI (unless already done) and finalizes it in the destructor. Requires a launcher: a program that runs
// alone uses SelfFactory. Not thread-safe: one thread may use it and its groups (MPI_THREAD_FUNNELED). Groups must be
// destroyed before the factory. If more ranks than processors share the machine, MPI is set to yield when idle, and
// waits sleep in short steps. A wait longer than `deadline` throws kHang with group, operation, sequence number and the
// ranks that have not arrived.
class MpiFactory final : public GroupFactory, public SideChannel {
 public:
  // node_memory false: everything is sent as messages, as between machines.
  explicit MpiFactory(std::chrono::milliseconds deadline, bool node_memory = true);
  ~MpiFactory() override;  // during stack unwinding MPI is not finalized: the launcher then ends the other ranks

  int world_rank() const override;
  int world_size() const override;
  int local_rank() const override;
  int local_size() const override;
  std::string_view backend() const override { return "mpi"; }
  std::unique_ptr<ProcessGroup> make(std::span<const int> world_ranks) override;
  RankStatus* status() override;
  const CommBoard& board() const;  // of this machine
  int board_rank() const;

  void open_notes() override;
  void leave(int to, const Note&) override;
  bool take(int from, Note&) override;
  bool world_failed() const override { return false; }  // a rank that fails takes the others down
  void check() override {}
  GroupTrace trace(uint64_t number, int leader, int rank, int size) override;

  struct Shared;

 private:
  std::unique_ptr<ProcessGroup> make_group(std::span<const int>, int rank, int size, uint64_t number);
  std::unique_ptr<Shared> shared_;
};

// Ends every rank of the job with this exit code. Without MPI, or after its finalization, only this process.
[[noreturn]] void abort_world(int code);

}  // namespace gt
