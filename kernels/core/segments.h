// Multi-tensor tables: ranges of elements in any buffers that one call processes, e.g. an optimizer step over
// everything a rank trains, or a norm over all its gradients. The table is uploaded to the device once; the host keeps
// a copy for costs, checks and replay.
#pragma once
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "kernels/core/memory.h"

namespace gt {

// Elements per tile. GPUs sum squares tile by tile, so its size affects the bits of the result.
constexpr int64_t kSegmentTile = 32768;

// Device addresses. Each op defines which ones it uses; the others may be nullptr.
struct Segment {
  std::byte* master = nullptr;
  const std::byte* grad = nullptr;
  float *m = nullptr, *v = nullptr;  // moments
  std::byte* value = nullptr;        // 16-bit copy written beside the master; nullptr: the master is the value
  int64_t count = 0;                 // elements, at least 1
  int32_t first_tile = 0;            // tiles of all preceding segments
  int32_t group = 0;                 // group of its partial sums; segments of a group are adjacent
  float weight_decay = 0;
  int32_t counted = 1;  // 0: excluded from sums
};
static_assert(std::is_trivially_copyable_v<Segment> && sizeof(Segment) == 64);

struct SegmentTable {
  Tensor device;                  // bytes [count, sizeof(Segment)]
  const Segment* host = nullptr;  // host copy
  int32_t count = 0, tiles = 0;
  int64_t elements = 0;
  DType master = DType::kF32, grad = DType::kF32, value = DType::kF32;
  std::span<const Segment> segments() const { return {host, static_cast<size_t>(count)}; }
};

// Arguments of an op over a segment table.
template <class Args>
concept OverSegments = requires(const Args& a) {
  a.table.segments();
};

// Returns the last segment that begins at or before this tile. Requires: `count` >= 1.
constexpr const Segment& segment_of(const Segment* list, int32_t count, int64_t tile) {
  int32_t low = 0;
  for (int32_t high = count; high - low > 1;) {
    const int32_t middle = (low + high) / 2;
    (list[middle].first_tile <= tile ? low : high) = middle;
  }
  return list[low];
}

// Requires f32 or bf16 gradients.
inline void require_gradients(const char* op, const SegmentTable& t) {
  GT_REQUIRE(t.grad == DType::kF32 || t.grad == DType::kBF16, Exit::kUsage, op, ": grad is ", name_of(t.grad),
             "; gradients of parameters are f32 or bf16");
}

// Checks the arguments of an optimizer: master, value and gradient dtypes, and the moments its rule needs.
inline void require_segments(const char* op, const SegmentTable& t, bool m, bool v) {
  const auto is_16bit = [](DType d) { return d == DType::kBF16 || d == DType::kF16; };
  GT_REQUIRE(is_16bit(t.master) || t.master == DType::kF32, Exit::kUsage, op, ": master is ", name_of(t.master),
             "; f32, bf16 or f16 is supported");
  GT_REQUIRE(is_16bit(t.value) || t.value == DType::kF32, Exit::kUsage, op, ": value is ", name_of(t.value),
             "; f32, bf16 or f16 is supported");
  require_gradients(op, t);
  for (const Segment& s : t.segments()) {
    GT_CHECK(s.master != nullptr && (s.m != nullptr || !m) && (s.v != nullptr || !v), op, ": a segment of ", s.count,
             " elements lacks a tensor");
    GT_REQUIRE(s.value == nullptr || !is_16bit(t.master), Exit::kUsage, op, ": master is ", name_of(t.master),
               " and there is a value beside it; a 16-bit master is the value itself");
  }
}

// A set of tables built together, and their memory.
class SegmentTables {
 public:
  // Starts a table; add() appends to the last one.
  void open(DType master, DType grad, DType value);
  void add(Segment);

  // Uploads all tables; none can be added afterwards. `capacity`: segments to allocate for, at least the number added,
  // where ranks must allocate equal amounts.
  void upload(int64_t capacity, Stream, const DeviceApi&);

  // Valid after upload().
  std::span<const SegmentTable> tables() const { return tables_; }
  int64_t bytes() const { return device_.bytes(); }

 private:
  std::vector<Segment> host_;
  std::vector<SegmentTable> tables_;
  Buffer device_;
};

}  // namespace gt
