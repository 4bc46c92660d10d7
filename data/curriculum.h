// Curriculum over sequence length: training begins with the first tokens of each sample and takes more of them step by
// step. Which samples a step has, and in which order, does not change. The rules are those of DeepSpeed's
// curriculum_learning (curriculum type seqlen).
#pragma once
#include <cstdint>
#include <vector>

namespace gt {

struct Curriculum {
  enum class Kind : uint8_t { kNone, kRoot, kDiscrete };
  Kind kind = Kind::kNone;
  // kRoot: floor((t / total)^(1 / root) (max - min) + min), rounded down to a multiple of `multiple`, at most max.
  int64_t min = 8, max = 1024, total = 1, multiple = 8, root = 1;
  // kDiscrete: lengths[i] for the first i with t <= until[i], the last one beyond: one length more than steps.
  std::vector<int64_t> lengths, until;

  explicit operator bool() const { return kind != Kind::kNone; }
  // Tokens of a sample that step t (from 1) takes. Of a curriculum that is on.
  int64_t length(int64_t t) const;
  // Every length that some step may have, ascending, each once.
  std::vector<int64_t> all_lengths() const;
};

}  // namespace gt
