// Shared status board of the ranks of one machine. For each rank it holds the position in its step, the last call in
// each group, the current wait and its start, and the last 1024 calls. Plain words in memory visible to all of them: a
// shared segment under MPI, the heap among threads. Written with relaxed atomics: no lock, no allocation, no system
// call. Written through rank_status.h and group_trace.h, read by stall_report.h. Independent of transports.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace gt {

struct CommCall;

enum class RunPhase : uint32_t { kInit, kFirstStep, kStep, kEval, kSave, kLoad, kDone, kFailed };
const char* to_string(RunPhase);

int64_t steady_ns();  // one clock for all processes of a machine
// Identifies the PID namespace of this process: containers of one machine may share memory but not process numbers. 0:
// unknown.
uint64_t pid_namespace();

// (stage, microbatch) in one word.
constexpr uint64_t kNoPosition = ~uint64_t{0};
constexpr uint64_t pack_position(int stage, int microbatch) {
  return uint64_t{static_cast<uint32_t>(stage)} << 32 | static_cast<uint32_t>(microbatch);
}

// A call in three words. `what`: op | reduce << 8 | dtype << 16 | peer << 32.
struct AtomicCall {
  std::atomic<uint64_t> what{0};
  std::atomic<int64_t> count{0}, tag{0};
  void store(const CommCall&);
  CommCall load() const;
};

// Truncated, zero-padded text that may be read while it is written.
template <size_t kBytes>
struct AtomicText {
  std::atomic<uint64_t> word[kBytes / 8]{};
  void store(const std::string&);
  std::string load() const;
};

// One rank in one group.
struct alignas(64) GroupSlot {
  static constexpr int kRecent = 8;
  std::atomic<uint64_t> key{0};  // identifies the group on every rank: leader's world rank << 32 | number of make()
                                 // call + 1
  std::atomic<uint64_t> posted{0}, messages{0};  // collectives entered so far; sends and receives
  std::atomic<int64_t> last_start{0}, last_step{0};
  std::atomic<uint64_t> last_where{kNoPosition};
  AtomicCall last;
  std::atomic<uint32_t> size{0}, rank{0};
  std::atomic<uint64_t> broken{0};          // its ranks made different calls: see BoardHead::broken_calls
  std::atomic<uint64_t> recent[kRecent]{};  // of collective s at s % kRecent: s + 1 << 32 | hash of the call
  AtomicText<96> label;
};
static_assert(sizeof(GroupSlot) == 256);

// One rank.
struct alignas(64) RankSlot {
  std::atomic<int64_t> beat{0};  // steady_ns of its monitor's last round; 0: no monitor
  std::atomic<int64_t> pid{0}, step{0};
  std::atomic<uint64_t> pid_namespace{0};    // pid_namespace() of that process; `pid` is meaningful inside it only
  std::atomic<uint64_t> where{kNoPosition};  // of the running action
  std::atomic<RunPhase> phase{RunPhase::kInit};
  std::atomic<int32_t> world_rank{-1};
  std::atomic<int64_t> warn_ns{600'000'000'000};  // waits of this rank that take longer are reported
  std::atomic<int64_t> wait_start{0};             // 0: not waiting
  std::atomic<uint64_t> wait_key{0}, wait_seq{0}, wait_is_message{0};
  AtomicCall wait_call;
  std::atomic<uint64_t> ops{0};     // calls written to the ring so far
  std::atomic<uint32_t> asleep{0};  // sleeps until another rank of the machine wakes it (RankSleep)
  AtomicText<96> coordinates;
};
static_assert(sizeof(RankSlot) == 256);

struct OpEntry {
  std::atomic<int64_t> time{0}, step{0};
  std::atomic<uint64_t> key{0}, seq{0}, where{kNoPosition};
  AtomicCall call;
};
static_assert(sizeof(OpEntry) == 64);

// Everything of one rank, in its own pages.
struct alignas(64) RankPages {
  static constexpr int kGroups = 32;  // two per group where one moves device and one host memory
  static constexpr uint64_t kRing = 1024;
  RankSlot rank;
  GroupSlot group[kGroups];
  OpEntry ring[kRing];
  GroupSlot* find(uint64_t key);                          // nullptr: this rank is not in that group
  const OpEntry* find(uint64_t key, uint64_t seq) const;  // collective `seq`, if still in the ring
};

// Shared by the monitors of a machine.
struct alignas(64) BoardHead {
  std::atomic<int64_t> reported{0};        // start of the ongoing stall that was reported; 0: none
  std::atomic<int32_t> ending{0};          // 1: a monitor writes its reports; 2: every process ends
  std::atomic<int32_t> death_reported{0};  // a dead rank was reported
  std::atomic<int64_t> dump{0};  // dump requested from every monitor: unix time << 1 | 1 on a hang; 0: none so far
  std::atomic<uint64_t> broken_key{0};  // the last group with mismatched calls, and the two calls
  AtomicText<256> broken_calls;
};

// A non-owning view. Index: local rank.
struct CommBoard {
  BoardHead* head = nullptr;
  RankPages* pages = nullptr;
  int ranks = 0;
  static size_t bytes(int ranks) { return sizeof(BoardHead) + sizeof(RankPages) * static_cast<size_t>(ranks); }
  // View of bytes(ranks) bytes, 64-byte aligned, in which head and pages are or will be constructed.
  static CommBoard at(std::byte* memory, int ranks);
};

}  // namespace gt
