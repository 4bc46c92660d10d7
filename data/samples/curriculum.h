// Sequence-length curriculum: training starts with a prefix of each sample and lengthens it step by step. The samples
// of a step and their order do not change. Rules as in DeepSpeed's curriculum_learning (curriculum type seqlen).
#pragma once
#include <cstdint>
#include <vector>

namespace gt {

struct Curriculum {
  enum class Kind : uint8_t { kNone, kRoot, kDiscrete };
  Kind kind = Kind::kNone;
  // kRoot: floor((t / total)^(1 / root) (max - min) + min), rounded down to a multiple of `multiple`, at most max.
  int64_t min = 8, max = 1024, total = 1, multiple = 8, root = 1;
  // kDiscrete: lengths[i] for the first i with t <= until[i], else the last one; one more length than steps.
  std::vector<int64_t> lengths, until;

  explicit operator bool() const { return kind != Kind::kNone; }
  // Tokens per sample in step t (from 1). Requires: the curriculum is enabled.
  int64_t length(int64_t t) const;
  // Every length that occurs in some step, ascending, unique.
  std::vector<int64_t> all_lengths() const;
};

}  // namespace gt
