// Ranks as processes that exchange messages: groups over a transport (MPI: mpi_group.h, sockets: socket_group.h).
// Collectives consist of messages, large ones inside a machine use shared memory. Sums are in rank order, bitwise
// identical to the thread backend. Nothing progresses outside calls: poll() and every wait advance all outstanding work
// of this rank, in all groups.
#pragma once
#include <chrono>
#include <memory>

#include "kernels/core/check.h"
#include "parallel/comm/process_group.h"
#include "parallel/comm/side_channel.h"

namespace gt {

class MessageTransport;

// Thrown after the process of another rank of this machine has died: the stall monitor reports it and ends this
// process.
class RankDied : public Error {
 public:
  using Error::Error;
};

// Not thread-safe: one thread may use it and its groups. Groups must be destroyed before the factory. If more ranks
// than processors share the machine, waits sleep (rank_sleep.h). A wait longer than `deadline` throws kHang with group,
// operation, sequence number and the ranks that have not arrived.
class MessageFactory : public GroupFactory, public SideChannel {
 public:
  // node_memory false: everything is sent as messages, as between machines. Collective over the world.
  MessageFactory(std::unique_ptr<MessageTransport>, std::chrono::milliseconds deadline, bool node_memory);
  ~MessageFactory() override;

  int world_rank() const override;
  int world_size() const override;
  int local_rank() const override;
  int local_size() const override;
  std::string_view backend() const override;
  std::unique_ptr<ProcessGroup> make(std::span<const int> world_ranks) override;
  RankStatus* status() override;
  const CommBoard& board() const;  // of this machine
  int board_rank() const;
  [[noreturn]] void abort(int code);  // ends every rank of the world with this exit code

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

}  // namespace gt
