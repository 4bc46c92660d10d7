// What another trainer printed about its steps.
#pragma once
#include <string>
#include <vector>

namespace gt {

// A line of a step, and what its first group says: seconds, milliseconds, or tokens a second.
struct PeerFormat {
  std::string name, pattern;
  enum class Unit { kSeconds, kMilliseconds, kRate } unit = Unit::kMilliseconds;
};
// Of llm.c on GPUs and on CPUs, and of llmq (fields `ms |` and `took`, `time:`), and of scripts that end in
// "N tokens/s", as tests/bench/torch_gpt2.py does.
const std::vector<PeerFormat>& peer_formats();

// Tokens a second of each step that `output` tells of, by the first of the formats that finds any; in *found which.
// tokens: of a step. Empty: none does.
std::vector<double> peer_rates(const std::string& output, const std::vector<PeerFormat>& formats, double tokens,
                               std::string* found);

}  // namespace gt
