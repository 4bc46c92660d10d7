#include "parallel/comm/watch/comm_board.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "parallel/comm/call.h"

namespace gt {

const char* to_string(RunPhase p) {
  constexpr const char* kNames[] = {"init", "first step", "step", "evaluation", "save", "load", "ended", "failed"};
  return kNames[static_cast<int>(p)];
}

int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

uint64_t pid_namespace() {
  struct stat s {};
  return stat("/proc/self/ns/pid", &s) == 0 ? static_cast<uint64_t>(s.st_ino) : 0;
}

void AtomicCall::store(const CommCall& c) {
  const uint64_t w = uint64_t{static_cast<uint8_t>(c.op)} | uint64_t{static_cast<uint8_t>(c.reduce)} << 8 |
                     uint64_t{static_cast<uint8_t>(c.dtype)} << 16 | uint64_t{static_cast<uint32_t>(c.peer)} << 32;
  what.store(w, std::memory_order_relaxed);
  count.store(c.count, std::memory_order_relaxed);
  tag.store(c.tag, std::memory_order_relaxed);
}

CommCall AtomicCall::load() const {
  const uint64_t w = what.load(std::memory_order_relaxed);
  return {static_cast<CommOp>(w & 0xFF),      static_cast<ReduceOp>(w >> 8 & 0xFF),
          static_cast<DType>(w >> 16 & 0xFF), count.load(std::memory_order_relaxed),
          static_cast<int32_t>(w >> 32),      static_cast<int32_t>(tag.load(std::memory_order_relaxed))};
}

template <size_t kBytes>
void AtomicText<kBytes>::store(const std::string& text) {
  char padded[kBytes] = {};
  std::memcpy(padded, text.data(), std::min(text.size(), kBytes - 1));
  for (size_t i = 0; i < kBytes / 8; ++i) {
    uint64_t w;
    std::memcpy(&w, padded + 8 * i, 8);
    word[i].store(w, std::memory_order_relaxed);
  }
}

template <size_t kBytes>
std::string AtomicText<kBytes>::load() const {
  char padded[kBytes + 1] = {};
  for (size_t i = 0; i < kBytes / 8; ++i) {
    const uint64_t w = word[i].load(std::memory_order_relaxed);
    std::memcpy(padded + 8 * i, &w, 8);
  }
  return padded;
}

template struct AtomicText<96>;
template struct AtomicText<256>;

GroupSlot* RankPages::find(uint64_t key) {
  for (GroupSlot& g : group)
    if (g.key.load(std::memory_order_acquire) == key) return &g;
  return nullptr;
}

const OpEntry* RankPages::find(uint64_t key, uint64_t seq) const {
  const uint64_t end = rank.ops.load(std::memory_order_acquire), begin = end > kRing ? end - kRing : 0;
  for (uint64_t i = end; i-- > begin;) {
    const OpEntry& e = ring[i % kRing];
    const auto op = static_cast<CommOp>(e.call.what.load(std::memory_order_relaxed) & 0xFF);
    const bool collective = op != CommOp::kSend && op != CommOp::kRecv;
    if (collective && e.key.load(std::memory_order_relaxed) == key && e.seq.load(std::memory_order_relaxed) == seq)
      return &e;
  }
  return nullptr;
}

CommBoard CommBoard::at(std::byte* memory, int ranks) {
  return {reinterpret_cast<BoardHead*>(memory), reinterpret_cast<RankPages*>(memory + sizeof(BoardHead)), ranks};
}

}  // namespace gt
