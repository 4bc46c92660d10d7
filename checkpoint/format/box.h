// Rectangles of tensors: maps ranges of a flat buffer to the logical tensor. Pure arithmetic; no files.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parallel/zero/shard_view.h"

namespace gt {

// Elements [at[d], at[d] + extent[d]) of each dimension d; unused dimensions have at 0, extent 1.
struct Box {
  std::array<int64_t, Shape::kMaxRank> at{0, 0, 0, 0}, extent{1, 1, 1, 1};
  int ndim = 0;
  int64_t numel() const { return extent[0] * extent[1] * extent[2] * extent[3]; }
  friend bool operator==(const Box&, const Box&) = default;
};
std::string to_string(const Box&);  // "[4+2, 0+3]"

// Intersection; numel() is 0 when empty.
Box intersect(const Box&, const Box&);

// Decomposes elements [begin, end) of a row-major tensor into rectangles in ascending order, each contiguous in memory.
// Returns at most 2 rank - 1 of them.
std::vector<Box> flat_to_boxes(const Shape&, int64_t begin, int64_t end);

// A rectangle of the logical tensor and the offset of its elements, contiguous and row-major, in a view's data.
struct BoxPart {
  Box box;
  int64_t at = 0;  // in elements
};

// Decomposes a view into rectangles of the logical tensor. Its flat range becomes local rectangles, which are split at
// the edges of fused blocks (Q, K, V) and moved to global coordinates. Vocabulary padding is dropped, so the result may
// cover fewer elements than the view. kInternal when the view's shapes are inconsistent.
std::vector<BoxPart> boxes_of(const ShardView&);

// Returns "" when the boxes are disjoint and cover the shape; otherwise a description of the first defect.
std::string coverage_error(const Shape&, std::vector<Box>);

}  // namespace gt
