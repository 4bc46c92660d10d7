#include "checkpoint/format/box.h"

#include <algorithm>

namespace gt {

std::string to_string(const Box& b) {
  std::string out = "[";
  for (int d = 0; d < b.ndim; ++d) {
    const auto k = static_cast<size_t>(d);
    out += cat(d ? ", " : "", b.at[k], "+", b.extent[k]);
  }
  return out + "]";
}

Box intersect(const Box& a, const Box& b) {
  Box out;
  out.ndim = a.ndim;
  for (size_t d = 0; d < Shape::kMaxRank; ++d) {
    out.at[d] = std::max(a.at[d], b.at[d]);
    out.extent[d] = std::max<int64_t>(0, std::min(a.at[d] + a.extent[d], b.at[d] + b.extent[d]) - out.at[d]);
  }
  return out;
}

std::vector<Box> flat_to_boxes(const Shape& shape, int64_t begin, int64_t end) {
  GT_CHECK(shape.rank >= 1 && begin >= 0 && end <= shape.numel(), "elements ", begin, " to ", end, " of ",
           to_string(shape));
  const auto rank = static_cast<size_t>(shape.rank);
  std::array<int64_t, Shape::kMaxRank + 1> inner{};  // inner[j] = elements of a slab of dimensions j…
  inner[rank] = 1;
  for (size_t j = rank; j-- > 0;) inner[j] = inner[j + 1] * shape.dim[j];
  std::vector<Box> out;
  while (begin < end) {
    size_t j = 0;
    while (begin % inner[j] != 0 || inner[j] > end - begin) ++j;
    Box b;
    b.ndim = shape.rank;
    for (size_t d = j; d < rank; ++d) b.extent[d] = shape.dim[d];
    if (j > 0) {
      for (size_t d = 0; d < j; ++d) b.at[d] = begin / inner[d + 1] % shape.dim[d];
      b.extent[j - 1] = std::min((end - begin) / inner[j], shape.dim[j - 1] - b.at[j - 1]);
    }
    begin += b.numel();
    out.push_back(b);
  }
  return out;
}

namespace {

// Moves local rectangles along split dimensions to their global coordinates.
struct Mover {
  const ShardView& view;
  std::vector<BoxPart>& out;

  void add(const Box& b, int64_t at) {
    Box moved = b;
    for (int d = 0; d < b.ndim; ++d) {
      const auto k = static_cast<size_t>(d);
      const BlockSlice block = block_slice(view, d, b.at[k]);
      if (const int64_t end = block.local + block.count; b.at[k] + b.extent[k] > end) return split(b, at, k, end);
      moved.at[k] += block.at - block.local;
    }
    moved.extent[0] = std::min(moved.extent[0], view.full[0] - moved.at[0]);
    if (moved.extent[0] > 0) out.push_back({moved, at});
  }

  // Along the outermost dimension with more than one element, so both parts stay contiguous in memory.
  void split(Box b, int64_t at, size_t dim, int64_t end) {
    size_t outer = 0;
    while (b.extent[outer] == 1) ++outer;
    const int64_t head = outer == dim ? end - b.at[dim] : 1;
    Box rest = b;
    b.extent[outer] = head;
    rest.at[outer] += head;
    rest.extent[outer] -= head;
    add(b, at);
    add(rest, at + b.numel());
  }
};

}  // namespace

std::vector<BoxPart> boxes_of(const ShardView& v) {
  GT_CHECK(
      v.full.rank >= 1 && v.full.rank == v.local.rank && v.begin >= 0 && v.begin + v.data.numel() <= v.local.numel(),
      v.name, ": view of ", v.data.numel(), " elements from ", v.begin, ", local ", to_string(v.local), ", full ",
      to_string(v.full));
  for (int d = 0; d < v.full.rank; ++d) {
    const int64_t whole = d == 0 && v.pad_rows > 0 ? v.pad_rows : v.full[d];
    GT_CHECK(v.full[d] >= 1 && whole >= v.full[d] && v.local[d] == local_extent(v.shard, d, whole, v.at), v.name,
             ": local ", to_string(v.local), " is not a slice of ", to_string(v.full), " in dimension ", d);
  }
  std::vector<BoxPart> out;
  Mover mover{v, out};
  int64_t at = 0;
  for (const Box& b : flat_to_boxes(v.local, v.begin, v.begin + v.data.numel())) {
    mover.add(b, at);
    at += b.numel();
  }
  return out;
}

std::string coverage_error(const Shape& shape, std::vector<Box> boxes) {
  std::sort(boxes.begin(), boxes.end(), [](const Box& a, const Box& b) { return a.at < b.at; });
  int64_t sum = 0;
  for (size_t i = 0; i < boxes.size(); ++i) {
    sum += boxes[i].numel();
    for (size_t k = i + 1; k < boxes.size() && boxes[k].at[0] < boxes[i].at[0] + boxes[i].extent[0]; ++k)
      if (intersect(boxes[i], boxes[k]).numel() > 0)
        return cat("rectangles ", to_string(boxes[i]), " and ", to_string(boxes[k]), " overlap");
  }
  if (sum != shape.numel())
    return cat("rectangles hold ", sum, " of ", shape.numel(), " elements of ", to_string(shape));
  return "";
}

}  // namespace gt
