// Bulk collectives among rank processes of one machine through a shared segment: several times faster than messages
// when ranks outnumber processors.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "parallel/comm/messages/message_state.h"
#include "parallel/comm/messages/rank_sleep.h"
#include "parallel/comm/messages/shared_segment.h"

namespace gt {

class NodeMemory {
 public:
  // Collective over `ranks` of one machine, of which this one is number `rank`. `sleep` wakes them where they wait for
  // each other. Returns nullptr on every rank if memory does not suffice.
  static std::unique_ptr<NodeMemory> open(const SetupExchange&, RankSleep& sleep, std::vector<int> world_ranks,
                                          int rank);

  void enqueue(MessageWork& w) { queue_.push_back(&w); }
  void advance();                    // as far as the oldest work can go; then the next ones
  std::vector<int> missing() const;  // ranks that the current round waits for

 private:
  // One rank's cache lines. `written`: rounds whose data this rank has published; `reduced`: rounds whose sums it has
  // computed.
  struct alignas(128) RankState {
    std::atomic<uint64_t> written{0}, reduced{0};
    CommCall call[2];         // of the round, by parity
    int64_t largest_part[2];  // that this rank sends to another one in an all_to_all, in elements
  };
  // In front of a rank's data for another one, of an all_to_all: the elements of the whole parts.
  struct alignas(16) PartHeader {
    int64_t sends, expects;
  };
  NodeMemory(SharedSegment&& memory, RankSleep& sleep, std::vector<int> world_ranks, int64_t slot, int rank)
      : memory_(std::move(memory)),
        base_(memory_.data()),
        sleep_(sleep),
        world_ranks_(std::move(world_ranks)),
        slot_bytes_(slot),
        rank_(rank),
        size_(static_cast<int>(world_ranks_.size())) {}
  static int64_t slot_bytes(int size);
  RankState& seat(int r) const { return reinterpret_cast<RankState*>(base_)[r]; }
  std::byte* slot(int r) const;  // rank r's data of the current round
  bool all(std::atomic<uint64_t> RankState::*counter) const;
  bool step(MessageWork&);  // false: some rank has not arrived yet
  void write(MessageWork&);
  void announce(std::atomic<uint64_t> RankState::*counter);  // this round's
  void check_calls(const MessageWork&);                      // throws if ranks disagree
  void write_parts(const MessageWork&);
  void read_parts(const MessageWork&);
  [[noreturn]] void disagree(const MessageWork&, const std::string& how);  // ends the calls of this group
  int64_t part_bytes() const { return slot_bytes_ / size_ / 16 * 16; }     // of a rank's slot, for each other rank
  int64_t chunk(const MessageWork&) const;                                 // elements of a part moved in one round

  SharedSegment memory_;
  std::byte* base_;
  RankSleep& sleep_;
  const std::vector<int> world_ranks_;  // of the group
  int64_t slot_bytes_;
  int rank_, size_;
  uint64_t round_ = 0;  // two sets of slots alternate by parity of the round
  enum class State : uint8_t { kIdle, kWritten, kReduced } state_ = State::kIdle;
  int64_t at_ = 0;                   // elements of a part already moved
  int64_t largest_part_ = 0;         // of all ranks of the running all_to_all
  std::vector<MessageWork*> queue_;  // oldest first
  std::vector<const std::byte*> parts_;
};

}  // namespace gt
