// Private to the MPI backend: outstanding work of one rank and its progress engine.
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

// Throws kInternal with MPI's error string.
void check_mpi(int rc, const char* what);

class NodeMemory;

// One operation in flight; objects and their vectors are reused, so nothing is allocated once warm.
//   phase 1: data are sent to the ranks that sum them (or to their destination); phase 2: sums are sent back
//   (all_reduce)
struct MpiWork {
  const ProcessGroup* group = nullptr;
  GroupTrace* trace = nullptr;
  CommCounters* counters = nullptr;
  int64_t started = 0;  // steady_ns
  MPI_Comm comm = MPI_COMM_NULL;
  CommCall call;
  uint64_t index = 0, seq = 0;
  NodeMemory* node = nullptr;  // uses shared memory instead of messages
  Tensor a, b;                 // inout, full or message; shard
  int phase = 0;               // 0: complete
  std::vector<MPI_Request> requests;
  std::vector<MPI_Status> statuses;
  struct Piece {
    int peer;
    int bytes;
    bool receive;
  };
  std::vector<Piece> pieces;  // what each request transfers
  std::vector<std::byte> staging;
  std::vector<const std::byte*> parts;

  void send(const std::byte* from, int64_t bytes, int peer, int tag);
  void receive(std::byte* to, int64_t bytes, int peer, int tag);
};

struct MpiFactory::Shared {
  Shared(std::chrono::milliseconds deadline, bool node_memory);

  MpiWork& start(const ProcessGroup&, MPI_Comm, const CommCall&, uint64_t seq);
  void open_board(MPI_Comm node);
  void progress();                   // advances everything in flight
  CommCall wait(uint64_t index);     // returns when complete; the work object is then reusable
  void forget(const ProcessGroup&);  // after an error: abandons its calls in flight, so that the group may be destroyed
  [[noreturn]] void hang(MpiWork&);

  const std::chrono::milliseconds deadline;
  const bool node_memory;
  bool owns_mpi = false, crowded = false;  // crowded: more local ranks than processors
  int rank = 0, size = 1, local_rank = 0, local_size = 1;
  int unwinding = 0;  // exceptions in flight when the factory was constructed
  int largest_tag = 32767;
  // Board of this machine's ranks; of this rank alone if memory cannot be shared.
  SharedSegment segment;
  std::unique_ptr<BoardHead> own_head;
  std::unique_ptr<RankPages> own_pages;
  CommBoard board;
  int board_rank = 0;  // this rank's pages
  std::unique_ptr<RankStatus> status;
  GroupTrace making;  // the make() calls, traced as a group of all ranks
  uint64_t made = 0;

  MPI_Comm notes = MPI_COMM_NULL;
  struct SentNote {
    Note note;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  std::deque<SentNote> sent_notes;               // until MPI has completed the send
  std::vector<std::pair<int, Note>> come_notes;  // (from, note): received, not yet taken

 private:
  void advance(MpiWork&);  // phase 0 when complete
  void check_pieces(MpiWork&, int rc);
  std::deque<MpiWork> works_;
  std::vector<uint64_t> free_;
  std::vector<MpiWork*> active_;
};

constexpr int64_t kSmallCollective =
    2048;  // bytes, below the eager limit: all_reduce takes one phase, never node memory

// The algorithms (mpi_collectives.cpp): post the first requests of a call; continue once all requests of a phase are
// complete.
void begin_collective(MpiWork&, int rank, int size);
void continue_collective(MpiWork&, int rank, int size);

}  // namespace gt
