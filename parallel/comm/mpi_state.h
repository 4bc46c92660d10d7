// Private to the MPI backend: outstanding work of one rank and what moves it forward.
#pragma once
#include <mpi.h>

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "parallel/comm/call.h"
#include "parallel/comm/mpi_group.h"
#include "parallel/comm/shared_segment.h"

namespace gt {

// Throws kInternal with MPI's own text.
void check_mpi(int rc, const char* what);

class NodeMemory;

// One operation in flight; objects and their vectors are reused, so nothing is allocated once warm.
//   phase 1: pieces travel to whoever adds them (or straight to their destination); phase 2: sums travel back
//   (all_reduce)
struct MpiWork {
  const ProcessGroup* group = nullptr;
  GroupTrace* trace = nullptr;
  CommCounters* counters = nullptr;
  int64_t started = 0;  // steady_ns
  MPI_Comm comm = MPI_COMM_NULL;
  CommCall call;
  uint64_t index = 0, seq = 0;
  NodeMemory* node = nullptr;  // travels through shared memory instead of messages
  Tensor a, b;                 // inout, full or message; shard
  int phase = 0;               // 0: complete
  std::vector<MPI_Request> requests;
  std::vector<MPI_Status> statuses;
  struct Piece {
    int peer;
    int bytes;
    bool receive;
  };
  std::vector<Piece> pieces;  // what each request carries
  std::vector<std::byte> staging;
  std::vector<const std::byte*> parts;

  void send(const std::byte* from, int64_t bytes, int peer, int tag);
  void receive(std::byte* to, int64_t bytes, int peer, int tag);
};

struct MpiFactory::Shared {
  Shared(std::chrono::milliseconds deadline, bool node_memory);

  MpiWork& start(const ProcessGroup&, MPI_Comm, const CommCall&, uint64_t seq);
  void open_board(MPI_Comm node);
  void progress();            // advances everything in flight
  CommCall wait(uint64_t index);  // returns when done; the work object is free again
  void forget(const ProcessGroup&);  // what it has in flight after an error moves no more; it may go
  [[noreturn]] void hang(MpiWork&);

  const std::chrono::milliseconds deadline;
  const bool node_memory;
  bool owns_mpi = false, crowded = false;  // crowded: more local ranks than processors
  int rank = 0, size = 1, local_rank = 0, local_size = 1;
  int unwinding = 0;  // exceptions in flight when the factory was made
  int largest_tag = 32767;
  // What the ranks of this machine see of each other; of this rank alone where memory cannot be shared.
  SharedSegment segment;
  std::unique_ptr<BoardHead> own_head;
  std::unique_ptr<RankPages> own_pages;
  CommBoard board;
  int board_rank = 0;  // this rank's pages
  std::unique_ptr<RankStatus> status;
  GroupTrace making;        // the calls of make(), as a group of all ranks
  uint64_t made = 0;

  MPI_Comm notes = MPI_COMM_NULL;
  struct SentNote {
    Note note;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  std::deque<SentNote> sent_notes;  // until MPI has taken them
  std::vector<std::pair<int, Note>> come_notes;  // (from, note), not yet asked for

 private:
  void advance(MpiWork&);  // phase 0 when complete
  void check_pieces(MpiWork&, int rc);
  std::deque<MpiWork> works_;
  std::vector<uint64_t> free_;
  std::vector<MpiWork*> active_;
};

constexpr int64_t kSmallCollective =
    2048;  // bytes, below the eager limit: all_reduce takes one phase, never node memory

// The algorithms (mpi_collectives.cpp): post the first requests of a call; continue when all requests of a phase are
// done.
void begin_collective(MpiWork&, int rank, int size);
void continue_collective(MpiWork&, int rank, int size);

}  // namespace gt
