#include "parallel/comm/mpi_group.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>

#include "parallel/comm/mpi_state.h"
#include "parallel/comm/node_memory.h"
#include "parallel/comm/self_group.h"

namespace gt {
namespace {

class MpiGroup final : public ProcessGroup {
 public:
  // Owns both communicators: one for collectives, one for messages, so that their tags never collide.
  MpiGroup(MpiFactory::Shared& world, MPI_Comm collectives, MPI_Comm messages, const GroupTrace& trace, int rank,
           int size)
      : ProcessGroup(rank, size),
        world_(world),
        collectives_(collectives),
        messages_(messages),
        node_(world.node_memory ? NodeMemory::open(collectives, rank, size) : nullptr) {
    trace_ = trace;
    trace_.connect();
  }
  ~MpiGroup() override {
    trace_.close();
    world_.forget(*this);
    int ended = 0;
    MPI_Finalized(&ended);
    if (ended || std::uncaught_exceptions() > 0) return;  // freeing may block on ranks that have ended
    MPI_Comm_free(&collectives_);
    MPI_Comm_free(&messages_);
  }

  std::string_view backend() const override { return "mpi"; }
  Work all_reduce(Tensor t, ReduceOp op, Stream) override { return begin(all_reduce_call(*this, t, op), t, {}); }
  Work all_gather(Tensor shard, Tensor full, Stream) override {
    return begin(all_gather_call(*this, shard, full), full, shard);
  }
  Work reduce_scatter(Tensor full, Tensor shard, Stream) override {
    return begin(reduce_scatter_call(*this, full, shard), full, shard);
  }
  Work broadcast(Tensor t, int root, Stream) override { return begin(broadcast_call(*this, t, root), t, {}); }
  Work send(Tensor t, int to, int tag, Stream) override { return message(CommOp::kSend, t, to, tag); }
  Work recv(Tensor t, int from, int tag, Stream) override { return message(CommOp::kRecv, t, from, tag); }
  void barrier() override { begin(CommCall{}, {}, {}).wait({}); }
  void poll() override { world_.progress(); }

 protected:
  void wait(uint64_t ticket, Stream) override {
    const int64_t begin = steady_ns();
    const CommCall call = world_.wait(ticket);
    record_blocked(call.op, call.bytes(), begin, true);
  }

 private:
  Work begin(const CommCall& call, const Tensor& a, const Tensor& b) {
    if (call.count > 0) require_host(*this, a);
    if (b) require_host(*this, b);
    count_call(counters_, call, rank(), size());
    const uint64_t seq = sequence_++;
    const int64_t now = steady_ns();
    trace_.collective(call, seq, now);
    if (const std::string calls = trace_.disagreement(call, seq); !calls.empty())
      fail(Exit::kInternal, label(), ": ", calls);
    if (call.count == 0 && call.op != CommOp::kBarrier) return {};
    MpiWork& w = started(world_.start(*this, collectives_, call, seq), now);
    w.a = a;
    w.b = b;
    if (node_ && call.bytes() > kSmallCollective) {
      w.node = node_.get();
      node_->enqueue(w);
      node_->advance();
    } else {
      begin_collective(w, rank(), size());
    }
    record_blocked(call.op, call.bytes(), now, false);
    return Work(this, w.index);
  }

  Work message(CommOp op, const Tensor& t, int peer, int tag) {
    const CommCall call = message_call(*this, op, t, peer, tag);
    if (call.count > 0) require_host(*this, t);
    GT_CHECK(tag <= world_.largest_tag, "tag ", tag, " is above this MPI's largest, ", world_.largest_tag);
    count_call(counters_, call, rank(), size());
    const int64_t now = steady_ns();
    trace_.message(call, messages_sent_, now);
    MpiWork& w = started(world_.start(*this, messages_, call, messages_sent_++), now);
    op == CommOp::kSend ? w.send(t.data, t.bytes(), peer, tag) : w.receive(t.data, t.bytes(), peer, tag);
    record_blocked(op, call.bytes(), now, false);
    return Work(this, w.index);
  }

  MpiWork& started(MpiWork& w, int64_t now) {
    w.trace = &trace_;
    w.counters = &counters_;
    w.started = now;
    return w;
  }

  MpiFactory::Shared& world_;
  MPI_Comm collectives_, messages_;
  std::unique_ptr<NodeMemory> node_;  // set if all ranks of the group share a machine
  uint64_t sequence_ = 0, messages_sent_ = 0;
};

// Ranks on this machine as announced by the launcher, before MPI is initialized; 1 if it does not announce them.
int announced_local_size() {
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"}) {
    if (const char* text = std::getenv(name)) return std::max(1, std::atoi(text));
  }
  return 1;
}

long processors() { return std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)); }

}  // namespace

MpiFactory::Shared::Shared(std::chrono::milliseconds limit, bool shared_memory)
    : deadline(limit), node_memory(shared_memory), unwinding(std::uncaught_exceptions()) {
  int running = 0;
  MPI_Initialized(&running);
  if (!running) {
    // Without this Open MPI spins: with 16 ranks on 2 processors a 4-byte all-reduce then takes 0.2 s.
    if (announced_local_size() > processors()) setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    int level = 0;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level), "MPI_Init_thread");
    owns_mpi = true;
    GT_REQUIRE(level >= MPI_THREAD_FUNNELED, Exit::kInternal, "this MPI has no thread support (level ", level,
               "), MPI_THREAD_FUNNELED is needed");
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm node = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node),
            "MPI_Comm_split_type");
  MPI_Comm_rank(node, &local_rank);
  MPI_Comm_size(node, &local_size);
  open_board(node);
  MPI_Comm_free(&node);
  crowded = local_size > processors();
  int* value = nullptr;
  int known = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&value), &known);
  if (known) largest_tag = *value;
}

void MpiFactory::Shared::open_board(MPI_Comm node) {
  const size_t bytes = CommBoard::bytes(local_size);
  segment = SharedSegment::open(node, local_rank, static_cast<int64_t>(bytes), [this](std::byte* base) {
    const CommBoard b = CommBoard::at(base, local_size);
    if (local_rank == 0) new (b.head) BoardHead;
    new (&b.pages[local_rank]) RankPages;
  });
  if (segment) {
    board = CommBoard::at(segment.data(), local_size);
    board_rank = local_rank;
  } else {
    own_head = std::make_unique<BoardHead>();
    own_pages = std::make_unique<RankPages>();
    board = {own_head.get(), own_pages.get(), 1};
  }
  RankSlot& slot = board.pages[board_rank].rank;
  slot.world_rank.store(rank);
  slot.pid.store(getpid());
  slot.pid_namespace.store(pid_namespace());
  status = std::make_unique<RankStatus>(slot);
  making = GroupTrace(board, board_rank, UINT32_MAX - 1, 0, rank, size);
  making.set_label("making of the groups");
}

MpiFactory::MpiFactory(std::chrono::milliseconds deadline, bool node_memory)
    : shared_(std::make_unique<Shared>(deadline, node_memory)) {}

MpiFactory::~MpiFactory() {
  if (shared_->owns_mpi && std::uncaught_exceptions() == shared_->unwinding) MPI_Finalize();
}

int MpiFactory::world_rank() const { return shared_->rank; }
int MpiFactory::world_size() const { return shared_->size; }
int MpiFactory::local_rank() const { return shared_->local_rank; }
int MpiFactory::local_size() const { return shared_->local_size; }
RankStatus* MpiFactory::status() { return shared_->status.get(); }
const CommBoard& MpiFactory::board() const { return shared_->board; }
int MpiFactory::board_rank() const { return shared_->board_rank; }

std::unique_ptr<ProcessGroup> MpiFactory::make(std::span<const int> ranks) {
  const auto at = std::find(ranks.begin(), ranks.end(), shared_->rank);
  GT_CHECK(at != ranks.end() && std::is_sorted(ranks.begin(), ranks.end()) && ranks.front() >= 0 &&
               ranks.back() < shared_->size,
           "rank ", shared_->rank, " of ", shared_->size, " requests the group ", to_string(ranks),
           "; a list is ascending, inside the world and holds its caller");
  const int size = static_cast<int>(ranks.size()), rank = static_cast<int>(at - ranks.begin());
  // The MPI calls below block on all ranks, without our deadline; the board shows them as a barrier.
  const uint64_t number = shared_->made++;
  const int64_t now = steady_ns();
  shared_->making.collective(CommCall{}, number, now);
  shared_->making.begin_wait(CommCall{}, number, now);
  auto group = make_group(ranks, rank, size, number);
  shared_->making.end_wait();
  return group;
}

std::unique_ptr<ProcessGroup> MpiFactory::make_group(std::span<const int> ranks, int rank, int size, uint64_t number) {
  MPI_Comm comm = MPI_COMM_NULL, messages = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(MPI_COMM_WORLD, ranks.front(), shared_->rank, &comm), "MPI_Comm_split");
  int found = 0;
  MPI_Comm_size(comm, &found);
  GT_CHECK(found == size, "rank ", shared_->rank, " requests the group ", to_string(ranks), ", but ", found,
           " ranks gave a list that starts with ", ranks.front(), "; the lists of one call must partition the world");
  if (size == 1) {
    MPI_Comm_free(&comm);
    return std::make_unique<SelfGroup>();
  }
  const GroupTrace trace(shared_->board, shared_->board_rank, number, ranks.front(), rank, size);
  check_mpi(MPI_Comm_dup(comm, &messages), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(messages, MPI_ERRORS_RETURN);
  return std::make_unique<MpiGroup>(*shared_, comm, messages, trace, rank, size);
}

void abort_world(int code) {
  int running = 0, ended = 0;
  MPI_Initialized(&running);
  MPI_Finalized(&ended);
  if (running && !ended) MPI_Abort(MPI_COMM_WORLD, code);
  std::_Exit(code);
}

}  // namespace gt
