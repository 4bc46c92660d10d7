#include "data/bpe/bpe_merges.h"

#include <algorithm>
#include <bit>

namespace gt {
namespace {

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

constexpr uint32_t kNone = ~uint32_t{0};

}  // namespace

BpeMerges::BpeMerges(const std::vector<BpeMerge>& merges) : slots_(std::bit_ceil(2 * merges.size() + 2)) {
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t pair = pair_of(merges[rank].left, merges[rank].right);
    slots_[slot_of(pair)] = {pair, static_cast<uint32_t>(rank), merges[rank].result};
  }
}

// Returns the slot of this pair, or the empty slot where it would be inserted.
size_t BpeMerges::slot_of(uint64_t pair) const {
  uint64_t hash = pair * 0x9E3779B97F4A7C15ull;
  hash ^= hash >> 32;
  size_t at = hash & (slots_.size() - 1);
  while (slots_[at].pair != pair && slots_[at].pair != kEmpty) at = (at + 1) & (slots_.size() - 1);
  return at;
}

const BpeMerges::Slot* BpeMerges::find(int32_t left, int32_t right) const {
  const Slot& s = slots_[slot_of(pair_of(left, right))];
  return s.pair == kEmpty ? nullptr : &s;
}

void BpeMerges::apply(std::vector<int32_t>* symbols, std::vector<int32_t>* out) const {
  std::vector<int32_t>& ids = *symbols;
  const auto n = static_cast<uint32_t>(ids.size());
  std::vector<uint32_t> next(n), before(n);  // remaining neighbours; kNone at the ends
  for (uint32_t k = 0; k < n; ++k) next[k] = k + 1 < n ? k + 1 : kNone, before[k] = k > 0 ? k - 1 : kNone;
  std::vector<Candidate> heap;
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  const auto consider = [&](uint32_t left) {
    if (left == kNone || next[left] == kNone) return;
    const Slot* s = find(ids[left], ids[next[left]]);
    if (s == nullptr) return;
    heap.push_back({s->rank, left, s->result});
    std::push_heap(heap.begin(), heap.end(), later);
  };
  for (uint32_t k = 0; k + 1 < n; ++k) consider(k);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Candidate c = heap.back();
    heap.pop_back();
    const uint32_t right = ids[c.at] < 0 ? kNone : next[c.at];
    const Slot* s = right == kNone ? nullptr : find(ids[c.at], ids[right]);
    if (s == nullptr || s->rank != c.rank) continue;  // its symbols have been merged already
    ids[c.at] = c.result;
    ids[right] = -1;
    next[c.at] = next[right];
    if (next[right] != kNone) before[next[right]] = c.at;
    consider(before[c.at]);
    consider(c.at);
  }
  for (uint32_t k = 0; k < n; k = next[k]) {
    out->push_back(ids[k]);
    if (next[k] == kNone) break;
  }
}

}  // namespace gt
