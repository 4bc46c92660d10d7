// How the ranks of a mesh hold one tensor, for each mesh axis: what the static proof of a layout (layout_proof.h)
// derives for every tensor of a step.
#pragma once
#include <array>
#include <cstdint>
#include <string>

namespace gt::proof {

// Axes of the proof: mesh axes, of which dp and cp are divided into what is outside of ep and what is inside (experts
// are another view of the same ranks); then groups of ranks inside one: those that hold the same KV heads, and the
// first and last stage of a tied table.
enum class Along : uint8_t { kPp, kDp, kDpInEp, kCp, kCpInEp, kTp, kKv, kTied };
constexpr int kAlong = 8;
const char* name_of(Along);

// kZero: 0, which is a value of every kind. kSame: every rank has the value. kSplit: each rank has a slice along `dim`.
// kPartial: the value is the sum over the ranks. kShard: each rank has a slice of the flattened value. kVaries: values
// that belong to their ranks.
enum class Kind : uint8_t { kZero, kSame, kSplit, kPartial, kShard, kVaries };

struct AxisType {
  Kind kind = Kind::kSame;
  int8_t dim = 0;
  bool sequences = false;  // kSplit along rows of tokens: every rank has whole sequences
  bool experts = false;    // kSplit along rows of tokens: every rank has the rows of its own experts
  friend bool operator==(const AxisType&, const AxisType&) = default;
};
constexpr AxisType kSame{}, kPartial{Kind::kPartial}, kShard{Kind::kShard}, kZero{Kind::kZero};
constexpr AxisType split(int dim, bool sequences = false) {
  return {Kind::kSplit, static_cast<int8_t>(dim), sequences};
}
std::string to_string(AxisType);  // "partial sums", "split along dimension 0"

struct LayoutType {
  std::array<AxisType, kAlong> axes;
  AxisType& operator[](Along a) { return axes[static_cast<size_t>(a)]; }
  AxisType operator[](Along a) const { return axes[static_cast<size_t>(a)]; }
  friend bool operator==(const LayoutType&, const LayoutType&) = default;
};

}  // namespace gt::proof
