// Parser for the step lines that a baseline trainer prints.
#pragma once
#include <string>
#include <vector>

namespace gt {

// Pattern of a step line; its first group is in seconds, milliseconds, or tokens per second.
struct PeerFormat {
  std::string name, pattern;
  enum class Unit { kSeconds, kMilliseconds, kRate } unit = Unit::kMilliseconds;
};
// Formats of llm.c (GPU and CPU), of llmq (fields `ms |` and `took`, `time:`), and of scripts that end in "N tokens/s"
// such as tests/bench/torch_gpt2.py.
const std::vector<PeerFormat>& peer_formats();

// Returns tokens per second of each step in `output`, parsed with the first format that matches, named in *found.
// `tokens`: tokens per step. Empty if no format matches.
std::vector<double> peer_rates(const std::string& output, const std::vector<PeerFormat>& formats, double tokens,
                               std::string* found);

}  // namespace gt
