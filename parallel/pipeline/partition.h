// Partitions the layers of a model into pipeline stages. A pure function of layer type names, integer forward FLOPs per
// token and parameter counts.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace gt {

struct LayerCost {
  std::string type;   // "embedding", "block", "norm", "head"
  int64_t flops = 0;  // forward, per token
  int64_t parameters = 0;
};

// Returns parts + 1 boundaries, first 0, last layers.size(): part k holds layers [b[k], b[k+1]), at least one. Rules:
//   flops        minimizes the largest FLOPs of a part; ties: smaller sum of squares, then lexicographically smallest
//                boundaries. "best" and "auto" are the same
//   uniform      floor(n / parts) layers each, one more in the first n mod parts parts
//   parameters   balances parameter counts as DeepSpeed does: smallest difference between largest and smallest part
//   type:REGEX   the same with weight 1 for layers whose type matches (case-insensitive search), 0 for others
//   4,4,4,0      blocks per part; layers before the first block join the first part, those after the last block the
//                last part
// Throws gt::Error (kUsage), naming the legal alternatives: unknown rule, more parts than layers, no match, counts that
// do not add up, a part without any layer.
std::vector<int> partition(const std::string& rule, std::span<const LayerCost>, int parts);

}  // namespace gt
