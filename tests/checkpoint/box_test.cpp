// Flat ranges as rectangles, in global coordinates.
#include "checkpoint/format/box.h"

#include <random>
#include <set>

#include "tests/checkpoint/support.h"
#include "tests/support/test.h"

namespace gt::ckpt {
namespace {

Box box(std::initializer_list<int64_t> at, std::initializer_list<int64_t> extent) {
  Box b;
  b.ndim = static_cast<int>(at.size());
  std::copy(at.begin(), at.end(), b.at.begin());
  std::copy(extent.begin(), extent.end(), b.extent.begin());
  return b;
}

ShardView view(Shape full, Shape local, ShardSpec shard, int tp_rank, int tp_size, int64_t begin, int64_t count) {
  return {.name = "master/x",
          .data = {nullptr, {count}, DType::kF32, {}},
          .full = full,
          .local = local,
          .shard = shard,
          .at = RankCoordinates({tp_rank, tp_size}),
          .begin = begin};
}

TEST_CASE("a flat segment becomes the rectangles of the specification") {
  const auto boxes = flat_to_boxes({12, 8}, 29, 70);
  REQUIRE(boxes.size() == 3);
  CHECK(boxes[0] == box({3, 5}, {1, 3}));
  CHECK(boxes[1] == box({4, 0}, {4, 8}));
  CHECK(boxes[2] == box({8, 0}, {1, 6}));
  CHECK(flat_to_boxes({12, 8}, 0, 96) == std::vector<Box>{box({0, 0}, {12, 8})});
  CHECK(flat_to_boxes({12, 8}, 40, 40).empty());
  CHECK(flat_to_boxes({5}, 1, 4) == std::vector<Box>{box({1}, {3})});
}

TEST_CASE("fused blocks are split at their edges and moved to their global offsets") {
  const auto pieces = boxes_of(view({12, 4}, {6, 4}, ShardSpec::split(0, 3), 1, 2, 5, 17));
  REQUIRE(pieces.size() == 4);
  CHECK(pieces[0].box == box({3, 1}, {1, 3}));
  CHECK(pieces[1].box == box({6, 0}, {2, 4}));
  CHECK(pieces[2].box == box({10, 0}, {1, 4}));
  CHECK(pieces[3].box == box({11, 0}, {1, 2}));
  CHECK(pieces[3].at == 15);
}

TEST_CASE("every flat range of every shape is covered once, in order, by at most 2 rank - 1 rectangles") {
  for (const Shape& s : {Shape{7}, Shape{3, 4}, Shape{1, 5}, Shape{4, 1, 3}, Shape{2, 3, 2, 3}, Shape{1}}) {
    for (int64_t a = 0; a <= s.numel(); ++a)
      for (int64_t b = a; b <= s.numel(); ++b) {
        const auto boxes = flat_to_boxes(s, a, b);
        REQUIRE(static_cast<int>(boxes.size()) <= 2 * s.rank - 1);
        int64_t at = a;
        for (const Box& x : boxes) {
          int64_t first = 0;
          for (size_t d = 0; d < static_cast<size_t>(s.rank); ++d) {
            first = first * s.dim[d] + x.at[d];
            REQUIRE(x.at[d] + x.extent[d] <= s.dim[d]);
          }
          REQUIRE(first == at);
          at += x.numel();
        }
        REQUIRE(at == b);
      }
  }
}

TEST_CASE("grouped heads are split at their edges, and heads that ranks share have one offset") {
  // 4 query heads and 2 KV heads of 2 rows each; rank 2 of 4: rows 4 5, 10 11, 14 15.
  const auto pieces = boxes_of(view({16, 3}, {6, 3}, ShardSpec::qkv(4, 2), 2, 4, 1, 16));
  REQUIRE(pieces.size() == 5);
  CHECK(pieces[0].box == box({4, 1}, {1, 2}));
  CHECK(pieces[1].box == box({5, 0}, {1, 3}));
  CHECK(pieces[2].box == box({10, 0}, {2, 3}));
  CHECK(pieces[3].box == box({14, 0}, {1, 3}));
  CHECK(pieces[4].box == box({15, 0}, {1, 2}));
  const auto neighbour = boxes_of(view({16, 3}, {6, 3}, ShardSpec::qkv(4, 2), 3, 4, 6, 12));
  CHECK(neighbour[0].box == box({10, 0}, {2, 3}));
}

TEST_CASE("rectangles hold exactly the logical elements that logical_offset() returns") {
  std::mt19937 draw(1);
  const auto pick = [&](int lo, int hi) { return lo + static_cast<int>(draw() % static_cast<unsigned>(hi - lo + 1)); };
  for (int trial = 0; trial < 3000; ++trial) {
    const int tp = pick(1, 4), blocks = pick(1, 3), dim = pick(0, 1), rows = pick(1, 4), cols = pick(1, 5);
    const int kv = pick(0, 1) ? tp : 1;  // KV heads per rank, or one shared by all ranks
    const bool heads = dim == 0 && pick(0, 2) == 0;
    const ShardSpec cut = heads ? ShardSpec::qkv(2 * tp, kv) : ShardSpec::split(dim, blocks);
    Shape full = dim == 0 ? Shape{tp * blocks * rows, cols} : Shape{rows, tp * blocks * cols};
    if (heads) full.dim[0] = (2 * tp + 2 * kv) * rows;
    Shape local = full;
    local.dim[static_cast<size_t>(dim)] = local_extent(cut.tp(), full[dim], tp);
    ShardView v = view(full, local, cut, pick(0, tp - 1), tp, 0, 0);
    if (dim == 0 && !heads && blocks == 1 && rows > 1 && pick(0, 1)) {  // padding: the logical tensor is shorter
      v.pad_rows = full[0];
      v.full.dim[0] -= pick(1, rows - 1);
    }
    if (const int ep = pick(1, 3), by = heads ? 1 : pick(0, 1); ep > 1) {  // an outer axis, along either dimension
      v.shard = ShardSpec::split(by, 1, Axis::kEp).then(cut);
      v.at[Axis::kEp] = {pick(0, ep - 1), ep};
      if (by == 0 && v.pad_rows > 0) v.pad_rows *= ep;
      v.full.dim[static_cast<size_t>(by)] *= ep;
    }
    v.begin = pick(0, static_cast<int>(local.numel()) - 1);
    v.data.shape = {pick(0, static_cast<int>(local.numel() - v.begin))};
    std::set<std::pair<int64_t, int64_t>> expected, found;  // logical element, element of the view
    for (int64_t k = 0; k < v.data.numel(); ++k)
      if (const int64_t e = logical_offset(v, v.begin + k); e >= 0) expected.emplace(e, k);
    for (const BoxPart& p : boxes_of(v))
      for (int64_t k = 0; k < p.box.numel(); ++k)
        found.emplace((p.box.at[0] + k / p.box.extent[1]) * v.full[1] + p.box.at[1] + k % p.box.extent[1], p.at + k);
    INFO("full " << to_string(v.full) << " tp " << v.at[Axis::kTp].rank << "/" << tp << " ep " << v.at[Axis::kEp].rank
                 << "/" << v.at[Axis::kEp].size << " dim " << dim << " blocks " << blocks << " begin " << v.begin);
    REQUIRE(expected == found);
  }
}

TEST_CASE("overlaps and gaps between rectangles are found") {
  CHECK(coverage_error({4, 4}, {box({0, 0}, {2, 4}), box({2, 0}, {2, 3}), box({2, 3}, {2, 1})}) == "");
  CHECK_THAT(coverage_error({4, 4}, {box({0, 0}, {2, 4}), box({2, 0}, {2, 3})}), Catch::Contains("14 of 16"));
  CHECK_THAT(coverage_error({4, 4}, {box({0, 0}, {3, 4}), box({2, 0}, {1, 4})}), Catch::Contains("overlap"));
  CHECK_THAT(coverage_error({4, 4}, {}), Catch::Contains("0 of 16"));
  CHECK_THAT(coverage_error({4}, {box({0}, {2}), box({0}, {2})}), Catch::Contains("overlap"));
}

TEST_CASE("a view whose shapes contradict each other is a broken invariant, not a checkpoint") {
  CHECK_THROWS_AS(boxes_of(view({12, 4}, {5, 4}, ShardSpec::split(0, 3), 0, 2, 0, 4)), Error);
  CHECK_THROWS_AS(boxes_of(view({12, 4}, {6, 4}, ShardSpec::split(0, 3), 0, 2, 20, 5)), Error);
  CHECK_THROWS_AS(boxes_of(view({12, 4}, {12, 4}, ShardSpec::split(0, 5), 0, 1, 0, 4)), Error);
}

}  // namespace
}  // namespace gt::ckpt
