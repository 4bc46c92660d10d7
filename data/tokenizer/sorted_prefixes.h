// Search in a sorted list of pieces for those that a text begins with.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string_view>

namespace gt {

// Calls act(piece, size) for each element of [low, high) whose member `text` is a prefix of `text`, shorter ones first.
// Requires: elements sorted by `text` byte by byte, all with the first byte of `text`. Takes time O(size log elements)
// of the longest prefix that any element shares with `text`.
template <class Iterator, class Act>
void for_each_prefix(Iterator low, Iterator high, std::string_view text, const Act& act) {
  const auto byte = [](std::string_view s, size_t i) { return static_cast<uint8_t>(s[i]); };
  for (size_t depth = 1; low != high; ++depth) {  // all of [low, high) start with the same `depth` bytes
    for (; low != high && low->text.size() == depth; ++low) act(*low, depth);
    if (depth == text.size()) break;
    const uint8_t next = byte(text, depth);
    low = std::partition_point(low, high, [&](const auto& p) { return byte(p.text, depth) < next; });
    high = std::partition_point(low, high, [&](const auto& p) { return byte(p.text, depth) == next; });
  }
}

}  // namespace gt
