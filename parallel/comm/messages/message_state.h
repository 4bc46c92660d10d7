// Private to the message backends: outstanding work of one rank and its progress engine.
#pragma once
#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "parallel/comm/call.h"
#include "parallel/comm/messages/message_group.h"
#include "parallel/comm/messages/message_transport.h"
#include "parallel/comm/messages/rank_sleep.h"
#include "parallel/comm/messages/shared_segment.h"

namespace gt {

class NodeMemory;

// One operation in flight; objects and their vectors are reused, so nothing is allocated once warm.
//   phase 1: data are sent to the ranks that sum them (or to their destination); phase 2: sums are sent back
//   (all_reduce)
struct MessageWork {
  const ProcessGroup* group = nullptr;
  GroupTrace* trace = nullptr;
  CommCounters* counters = nullptr;
  int64_t started = 0;  // steady_ns
  CommCall call;
  uint64_t index = 0, seq = 0;
  NodeMemory* node = nullptr;            // uses shared memory instead of messages
  Tensor a, b;                           // inout, full, message or send; shard or recv
  PeerOffsets offsets;                   // of an all_to_all
  int phase = 0;                         // 0: complete
  std::unique_ptr<MessageSet> messages;  // of the current phase
  std::vector<std::byte> staging;
  std::vector<const std::byte*> parts;
};

struct MessageFactory::Shared {
  Shared(std::unique_ptr<MessageTransport>, std::chrono::milliseconds deadline, bool node_memory);

  MessageWork& start(const ProcessGroup&, MessageChannel&, const CommCall&, uint64_t seq);
  void open_board();
  void progress();                // advances everything in flight
  void retire();                  // removes completed work
  CommCall wait(uint64_t index);  // returns when complete; the work object is then reusable
  void abandon(
      const ProcessGroup&);  // after an error: abandons its calls in flight, so that the group may be destroyed
  [[noreturn]] void hang(MessageWork&);

  const std::unique_ptr<MessageTransport> transport;
  const std::chrono::milliseconds deadline;
  const bool node_memory;
  bool crowded = false;  // more local ranks than processors
  int rank = 0, size = 1, local_rank = 0, local_size = 1;
  // Board of this machine's ranks; of this rank alone if memory cannot be shared.
  SharedSegment segment;
  std::unique_ptr<BoardHead> own_head;
  std::unique_ptr<RankPages> own_pages;
  CommBoard board;
  int board_rank = 0;  // this rank's pages
  std::unique_ptr<RankStatus> status;
  std::unique_ptr<RankSleep> sleep;
  GroupTrace making;  // the make() calls, traced as a group of all ranks
  uint64_t made = 0;

  std::vector<std::pair<int, Note>> come_notes;  // (from, note): received, not yet taken

 private:
  void advance(MessageWork&);  // phase 0 when complete
  [[noreturn]] void disagree(const MessageWork&, const MessageSet::State&);
  std::deque<MessageWork> works_;
  std::vector<uint64_t> free_;
  std::vector<MessageWork*> active_;
};

// Bytes, below MPI's eager limit: all_reduce takes one phase of messages (between two ranks always); not in node memory
// if ranks share processors.
constexpr int64_t kSmallCollective = 2048;

// The algorithms (message_collectives.cpp): post the first messages of a call; continue once all messages of a phase
// are complete.
void begin_collective(MessageWork&, int rank, int size);
void continue_collective(MessageWork&, int rank, int size);

}  // namespace gt
