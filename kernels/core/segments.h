// Runs of elements that one call works through, whatever buffers they lie in: an optimizer's step over all that a rank
// trains, a norm over all of its gradients. The table of the runs lies on the device and is written there once; the
// host keeps its own copy for whoever counts, checks or repeats a call.
#pragma once
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "kernels/core/memory.h"

namespace gt {

// Elements of a segment that go together: a GPU sums squares tile by tile, so that its size is part of their bits.
constexpr int64_t kSegmentTile = 32768;

// Addresses on the device. Which of them a call uses is said by its op; the rest may be nullptr.
struct Segment {
  std::byte* master = nullptr;
  const std::byte* grad = nullptr;
  float *m = nullptr, *v = nullptr;  // moments
  std::byte* value = nullptr;        // written beside the master; nullptr: the master is the value
  int64_t count = 0;                 // elements, at least 1
  int32_t first_tile = 0;            // tiles of the segments before it
  int32_t group = 0;                 // of what its sums are part; segments of a group are neighbours
  float weight_decay = 0;
  int32_t counted = 1;  // 0: in no sum
};
static_assert(std::is_trivially_copyable_v<Segment> && sizeof(Segment) == 64);

struct SegmentTable {
  Tensor device;                  // bytes [count, sizeof(Segment)]
  const Segment* host = nullptr;  // the same
  int32_t count = 0, tiles = 0;
  int64_t elements = 0;
  DType master = DType::kF32, grad = DType::kF32, value = DType::kF32;
  std::span<const Segment> segments() const { return {host, static_cast<size_t>(count)}; }
};

// Arguments of an op over a table.
template <class Args>
concept OverSegments = requires(const Args& a) {
  a.table.segments();
};

// The last segment that begins at or before this tile. `count` >= 1.
constexpr const Segment& segment_of(const Segment* list, int32_t count, int64_t tile) {
  int32_t low = 0;
  for (int32_t high = count; high - low > 1;) {
    const int32_t middle = (low + high) / 2;
    (list[middle].first_tile <= tile ? low : high) = middle;
  }
  return list[low];
}

// Gradients of parameters, of every segment.
inline void require_gradients(const char* op, const SegmentTable& t) {
  GT_REQUIRE(t.grad == DType::kF32 || t.grad == DType::kBF16, Exit::kUsage, op, ": grad is ", name_of(t.grad),
             "; gradients of parameters are f32 or bf16");
}

// Of every optimizer: what is stepped, and the moments that its rule has.
inline void require_segments(const char* op, const SegmentTable& t, bool m, bool v) {
  const auto half = [](DType d) { return d == DType::kBF16 || d == DType::kF16; };
  GT_REQUIRE(half(t.master) || t.master == DType::kF32, Exit::kUsage, op, ": master is ", name_of(t.master),
             "; f32, bf16 or f16 is supported");
  GT_REQUIRE(half(t.value) || t.value == DType::kF32, Exit::kUsage, op, ": value is ", name_of(t.value),
             "; f32, bf16 or f16 is supported");
  require_gradients(op, t);
  for (const Segment& s : t.segments()) {
    GT_CHECK(s.master != nullptr && (s.m != nullptr || !m) && (s.v != nullptr || !v), op, ": a segment of ", s.count,
             " elements lacks a tensor");
    GT_REQUIRE(s.value == nullptr || !half(t.master), Exit::kUsage, op, ": master is ", name_of(t.master),
               " and there is a value beside it; a master of a half type is the value itself");
  }
}

// Tables that are made together, and their memory.
class SegmentTables {
 public:
  // Begins a table; add() appends to the last one.
  void open(DType master, DType grad, DType value);
  void add(Segment);

  // Writes all of them to the device; nothing is added any more. `room`: segments to take memory for, no fewer than
  // there are, where ranks are to take equally much.
  void upload(int64_t room, Stream, const DeviceApi&);

  // From upload() on.
  std::span<const SegmentTable> tables() const { return tables_; }
  int64_t bytes() const { return device_.bytes(); }

 private:
  std::vector<Segment> host_;
  std::vector<SegmentTable> tables_;
  Buffer device_;
};

}  // namespace gt
