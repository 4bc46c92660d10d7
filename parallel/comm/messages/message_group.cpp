#include "parallel/comm/messages/message_group.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "parallel/comm/messages/message_state.h"
#include "parallel/comm/messages/node_memory.h"
#include "parallel/comm/self_group.h"

namespace gt {
namespace {

class MessageGroup final : public ProcessGroup {
 public:
  // One channel for collectives, one for messages, so that their tags never collide.
  MessageGroup(MessageFactory::Shared& world, MessageTransport::Channels channels, const GroupTrace& trace, int rank,
               std::span<const int> world_ranks, bool one_machine)
      : ProcessGroup(rank, static_cast<int>(world_ranks.size())), world_(world), channels_(std::move(channels)) {
    if (world.node_memory && one_machine)
      node_ = NodeMemory::open(exchange(), *world.sleep, {world_ranks.begin(), world_ranks.end()}, rank);
    trace_ = trace;
    trace_.connect();
  }
  ~MessageGroup() override {
    trace_.close();
    world_.abandon(*this);
  }

  std::string_view backend() const override { return world_.transport->name(); }
  Work all_reduce(Tensor t, ReduceOp op, Stream) override { return begin(all_reduce_call(*this, t, op), t, {}); }
  Work all_gather(Tensor shard, Tensor full, Stream) override {
    return begin(all_gather_call(*this, shard, full), full, shard);
  }
  Work reduce_scatter(Tensor full, Tensor shard, Stream) override {
    return begin(reduce_scatter_call(*this, full, shard), full, shard);
  }
  Work broadcast(Tensor t, int root, Stream) override { return begin(broadcast_call(*this, t, root), t, {}); }
  Work all_to_all(Tensor send, Tensor recv, const PeerCounts& counts, Stream) override {
    return begin(all_to_all_call(*this, send, recv, counts), send, recv, counts);
  }
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
  Work begin(const CommCall& call, const Tensor& a, const Tensor& b, const PeerCounts& counts = {}) {
    if (call.count > 0) require_host(*this, a);
    if (b) require_host(*this, b);
    count_call(counters_, call, rank(), size(), counts);
    const uint64_t seq = sequence_++;
    const int64_t now = steady_ns();
    trace_.collective(call, seq, now);
    if (const std::string calls = trace_.disagreement(call, seq); !calls.empty())
      fail(Exit::kInternal, label(), ": ", calls);
    if (call.is_empty()) return {};
    MessageWork& w = started(world_.start(*this, *channels_.collectives, call, seq), now);
    w.a = a;
    w.b = b;
    if (call.is_all_to_all()) w.offsets.set(call, counts, size());
    if (uses_node_memory(call)) {
      w.node = node_.get();
      node_->enqueue(w);
      node_->advance();
    } else {
      begin_collective(w, rank(), size());
    }
    record_blocked(call.op, call.bytes(), now, false);
    return Work(this, w.index);
  }

  // The same on every rank. With a processor for each rank, polling memory is faster than messages of any size.
  bool uses_node_memory(const CommCall& call) const {
    if (!node_ || call.op == CommOp::kBarrier) return false;
    return !world_.crowded || call.op == CommOp::kAllToAllV || call.bytes() > kSmallCollective;
  }

  Work message(CommOp op, const Tensor& t, int peer, int tag) {
    const CommCall call = message_call(*this, op, t, peer, tag);
    if (call.count > 0) require_host(*this, t);
    const int largest = world_.transport->largest_tag();
    GT_CHECK(tag <= largest, "tag ", tag, " is above the largest of ", backend(), ", ", largest);
    count_call(counters_, call, rank(), size());
    const int64_t now = steady_ns();
    trace_.message(call, messages_sent_, now);
    MessageWork& w = started(world_.start(*this, *channels_.messages, call, messages_sent_++), now);
    op == CommOp::kSend ? w.messages->send(t.data, t.bytes(), peer, tag)
                        : w.messages->receive(t.data, t.bytes(), peer, tag);
    record_blocked(op, call.bytes(), now, false);
    return Work(this, w.index);
  }

  SetupExchange exchange() { return {*world_.transport, *channels_.collectives, rank(), size(), world_.deadline}; }

  MessageWork& started(MessageWork& w, int64_t now) {
    w.trace = &trace_;
    w.counters = &counters_;
    w.started = now;
    return w;
  }

  MessageFactory::Shared& world_;
  MessageTransport::Channels channels_;
  std::unique_ptr<NodeMemory> node_;  // set if all ranks of the group share a machine
  uint64_t sequence_ = 0, messages_sent_ = 0;
};

long processors() { return std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)); }

}  // namespace

MessageFactory::Shared::Shared(std::unique_ptr<MessageTransport> messages, std::chrono::milliseconds limit,
                               bool shared_memory)
    : transport(std::move(messages)), deadline(limit), node_memory(shared_memory) {
  rank = transport->rank();
  size = transport->size();
  const std::vector<int>& here = transport->local_ranks();
  local_size = static_cast<int>(here.size());
  local_rank = static_cast<int>(std::find(here.begin(), here.end(), rank) - here.begin());
  crowded = local_size > processors();
  open_board();
}

void MessageFactory::Shared::open_board() {
  const auto bytes = static_cast<int64_t>(CommBoard::bytes(local_size));
  const auto construct = [this](std::byte* base) {
    const CommBoard b = CommBoard::at(base, local_size);
    if (local_rank == 0) new (b.head) BoardHead;
    new (&b.pages[local_rank]) RankPages;
  };
  const std::unique_ptr<MessageChannel> machine = transport->split_machine();
  if (local_size > 1)
    segment = SharedSegment::open({*transport, *machine, local_rank, local_size, deadline}, bytes, construct);
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
  sleep = std::make_unique<RankSleep>(*transport, board, board_rank, static_cast<bool>(segment));
  making = GroupTrace(board, board_rank, UINT32_MAX - 1, 0, rank, size);
  making.set_label("making of the groups");
}

MessageFactory::MessageFactory(std::unique_ptr<MessageTransport> transport, std::chrono::milliseconds deadline,
                               bool node_memory)
    : shared_(std::make_unique<Shared>(std::move(transport), deadline, node_memory)) {}

MessageFactory::~MessageFactory() = default;

std::string_view MessageFactory::backend() const { return shared_->transport->name(); }
int MessageFactory::world_rank() const { return shared_->rank; }
int MessageFactory::world_size() const { return shared_->size; }
int MessageFactory::local_rank() const { return shared_->local_rank; }
int MessageFactory::local_size() const { return shared_->local_size; }
RankStatus* MessageFactory::status() { return shared_->status.get(); }
const CommBoard& MessageFactory::board() const { return shared_->board; }
int MessageFactory::board_rank() const { return shared_->board_rank; }

std::unique_ptr<ProcessGroup> MessageFactory::make(std::span<const int> ranks) {
  const auto at = std::find(ranks.begin(), ranks.end(), shared_->rank);
  GT_CHECK(at != ranks.end() && std::is_sorted(ranks.begin(), ranks.end()) && ranks.front() >= 0 &&
               ranks.back() < shared_->size,
           "rank ", shared_->rank, " of ", shared_->size, " requests the group ", to_string(ranks),
           "; a list is ascending, inside the world and holds its caller");
  const int size = static_cast<int>(ranks.size()), rank = static_cast<int>(at - ranks.begin());
  // The calls below may block on all ranks, without our deadline; the board shows them as a barrier.
  const uint64_t number = shared_->made++;
  const int64_t now = steady_ns();
  shared_->making.collective(CommCall{}, number, now);
  shared_->making.begin_wait(CommCall{}, number, now);
  auto group = make_group(ranks, rank, size, number);
  shared_->making.end_wait();
  return group;
}

std::unique_ptr<ProcessGroup> MessageFactory::make_group(std::span<const int> ranks, int rank, int size,
                                                         uint64_t number) {
  MessageTransport::Channels channels = shared_->transport->split(ranks);
  if (size == 1) return std::make_unique<SelfGroup>();
  const GroupTrace trace(shared_->board, shared_->board_rank, number, ranks.front(), rank, size);
  const std::vector<int>& here = shared_->transport->local_ranks();
  const bool one_machine = std::includes(here.begin(), here.end(), ranks.begin(), ranks.end());
  return std::make_unique<MessageGroup>(*shared_, std::move(channels), trace, rank, ranks, one_machine);
}

void MessageFactory::abort(int code) {
  shared_->transport->abort(code);
  std::abort();  // not reached
}

void MessageFactory::open_notes() { shared_->transport->open_notes(); }

void MessageFactory::leave(int to, const Note& note) { shared_->transport->leave(to, note); }

bool MessageFactory::take(int from, Note& note) {
  auto& come = shared_->come_notes;
  Note next;
  shared_->transport->advance();
  for (int sender = 0; shared_->transport->next_note(sender, next);) come.emplace_back(sender, next);
  const auto it = std::find_if(come.begin(), come.end(), [&](const auto& c) {
    return c.first == from && c.second.group == note.group && c.second.tag == note.tag;
  });
  if (it == come.end()) return false;
  note = it->second;
  come.erase(it);
  return true;
}

GroupTrace MessageFactory::trace(uint64_t number, int leader, int rank, int size) {
  return GroupTrace(shared_->board, shared_->board_rank, number, leader, rank, size);
}

}  // namespace gt
