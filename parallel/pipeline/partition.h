// Cuts the layer list of a model into pipeline stages. A pure function of costs: it knows no layers, only their type
// names, integer forward FLOPs per token and parameter counts.
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

// parts + 1 boundaries, first 0, last layers.size(): part k holds layers [b[k], b[k+1]) and at least one. Rules:
//   flops        smallest possible maximum of flops; ties: smaller sum of squares, then lexicographically smallest
//                boundaries. "best" and "auto" are the same
//   uniform      floor(n / parts) layers each, the first n mod parts parts one more
//   parameters   balances parameter counts as DeepSpeed does: smallest difference between largest and smallest part
//   type:REGEX   the same with weight 1 for layers whose type matches (case-insensitive search), 0 for others
//   4,4,4,0      blocks a part; what stands before the first block joins the first part, what follows the last block
//                the last part
// Throws gt::Error (kUsage), naming the legal alternatives: unknown rule, more parts than layers, no match, counts that
// do not add up, a part without any layer.
std::vector<int> partition(const std::string& rule, std::span<const LayerCost>, int parts);

}  // namespace gt
