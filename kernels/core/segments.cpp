#include "kernels/core/segments.h"

#include <limits>

namespace gt {

void SegmentTables::open(DType master, DType grad, DType value) {
  tables_.push_back({.master = master, .grad = grad, .value = value});
}

void SegmentTables::add(Segment s) {
  GT_CHECK(!tables_.empty() && device_.bytes() == 0 && s.count > 0, "a segment of ", s.count, " elements");
  SegmentTable& t = tables_.back();
  GT_CHECK(t.count == 0 || host_.back().group <= s.group, "group ", s.group, " after ", host_.back().group);
  const int64_t tiles = (s.count + kSegmentTile - 1) / kSegmentTile;
  GT_CHECK(t.tiles + tiles <= std::numeric_limits<int32_t>::max() / 8, "a table of ", t.elements + s.count,
           " elements");
  s.first_tile = t.tiles;
  t.tiles += static_cast<int32_t>(tiles);
  t.elements += s.count;
  ++t.count;
  host_.push_back(s);
}

void SegmentTables::upload(int64_t capacity, Stream stream, const DeviceApi& api) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(Segment));
  const auto count = static_cast<int64_t>(host_.size());
  GT_CHECK(count <= capacity, "a table of ", capacity, " segments, there are ", count);
  device_ = Buffer(capacity * kBytes, stream.device, api);
  if (count > 0) api.copy(device_.data(), host_.data(), count * kBytes, stream);
  int64_t at = 0;
  for (SegmentTable& t : tables_) {
    t.device = device_.tensor({t.count, kBytes}, DType::kByte, at * kBytes);
    t.host = host_.data() + at;
    at += t.count;
  }
}

}  // namespace gt
