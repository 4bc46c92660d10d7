// Rectangles of tensors: how a piece of a flat buffer lies in the logical tensor. Pure arithmetic; knows no files.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parallel/zero/shard_view.h"

namespace gt {

// Elements at[d] … at[d] + extent[d] - 1 of each dimension; unused dimensions are 0 and 1.
struct Box {
  std::array<int64_t, Shape::kMaxRank> at{0, 0, 0, 0}, extent{1, 1, 1, 1};
  int ndim = 0;
  int64_t numel() const { return extent[0] * extent[1] * extent[2] * extent[3]; }
  friend bool operator==(const Box&, const Box&) = default;
};
std::string to_string(const Box&);  // "[4+2, 0+3]"

// The overlap; its numel() is 0 when there is none.
Box intersect(const Box&, const Box&);

// Elements [begin, end) of a flattened row-major tensor as rectangles in ascending order, each contiguous in memory:
// at most 2 rank - 1 of them.
std::vector<Box> flat_to_boxes(const Shape&, int64_t begin, int64_t end);

// A rectangle of the logical tensor and where its elements, contiguous and row-major, begin in a view's data.
struct BoxPiece {
  Box box;
  int64_t at = 0;  // elements
};

// A view as rectangles of the logical tensor: its flat range as local rectangles, cut at the edges of fused blocks (Q,
// K, V), moved to their global places. Vocabulary padding is left out, so the pieces may hold fewer elements than the
// view. Throws kInternal when the view's shapes do not agree with each other.
std::vector<BoxPiece> pieces_of(const ShardView&);

// "" when the boxes are disjoint and fill the shape; else what is wrong and where.
std::string coverage_error(const Shape&, std::vector<Box>);

}  // namespace gt
