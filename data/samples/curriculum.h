// Sequence-length curriculum: training starts with a prefix of each sample and lengthens it step by step. The samples
// of a step and their order do not change. Rules as in DeepSpeed's curriculum_learning (curriculum type seqlen).
#pragma once
#include <array>
#include <cstdint>
#include <vector>

namespace gt {

enum class CurriculumType : uint8_t { kNone, kFixedLinear, kFixedRoot, kFixedDiscrete };
constexpr std::array<const char*, 4> names_of(CurriculumType) {
  return {"none", "fixed_linear", "fixed_root", "fixed_discrete"};
}

// Options data.curriculum and data.curriculum_*, described in fields(). Where 0 stands for another value, the run
// replaces it before the first step.
struct Curriculum {
  CurriculumType type = CurriculumType::kNone;
  // kFixedLinear, kFixedRoot: floor((t / steps)^(1 / root) (max - min) + min), rounded down to a multiple of `step`, at
  // most max; root is 1 with kFixedLinear.
  int64_t min = 8, max = 0, steps = 0, step = 8, root = 2;
  // kFixedDiscrete: lengths[i] for the first i with t <= until[i], else the last one; one more length than steps.
  std::vector<int64_t> lengths, until;

  explicit operator bool() const { return type != CurriculumType::kNone; }
  // Tokens per sample in step t (from 1). Requires: the curriculum is enabled.
  int64_t length(int64_t t) const;
  // Every length that occurs in some step, ascending, unique.
  std::vector<int64_t> all_lengths() const;
  template <class V>
  void fields(V& v) {
    v("curriculum", type, "",
      "sequence-length curriculum: each step uses the first tokens of its samples, and more as training proceeds");
    v("curriculum_min", min, "1..1048576 tokens", "fixed_linear, fixed_root: initial length");
    v("curriculum_max", max, "0..1048576 tokens", "final length; 0: model.seq");
    v("curriculum_steps", steps, "0..1000000000000 steps", "steps until the final length; 0: train.steps");
    v("curriculum_step", step, "1..1048576 tokens", "lengths are multiples of this");
    v("curriculum_root", root, "1..1000", "fixed_root: 2 for the square root; 1 is fixed_linear");
    v("curriculum_lengths", lengths, "1..1048576 list of tokens", "fixed_discrete: successive lengths");
    v("curriculum_until", until, "1..1000000000000 list of steps",
      "fixed_discrete: last step of each length but the last");
  }
};

}  // namespace gt
