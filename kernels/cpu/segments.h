// Partitions the segments of a table among CPU threads in parts of fixed size: the split does not depend on segment
// boundaries, and many small segments form one parallel region.
#pragma once
#include <algorithm>

#include "kernels/core/segments.h"
#include "kernels/cpu/context.h"

namespace gt::cpu {

// Calls f(segment, begin, end) for elements [begin, end) of every segment, split at multiples of `part`, a divisor of
// kSegmentTile. Runs on all threads of the stream.
template <class F>
void parallel_parts(Stream stream, const SegmentTable& t, int64_t part, F f) {
  const int64_t parts = kSegmentTile / part;  // per tile
  const auto* list = t.device.as<const Segment>();
  parallel_for(stream, t.tiles * parts, 1, [&](int64_t from, int64_t to, int) {
    const Segment* s = &segment_of(list, t.count, from / parts);
    for (int64_t k = from; k < to; ++k) {
      while (s + 1 < list + t.count && s[1].first_tile <= k / parts) ++s;
      const int64_t begin = (k - s->first_tile * parts) * part, end = std::min(s->count, begin + part);
      if (begin < end) f(*s, begin, end);
    }
  });
}

// out[kSums * group + k] = sum over the group's counted segments of the sum of their partial sums, in order. `partial`
// has kSums values for every block of `block` elements of every tile; nullptr: 0.
template <int kSums>
void sum_groups(const SegmentTable& t, int64_t block, const double* partial, double* out) {
  const auto* list = t.device.as<const Segment>();
  for (int32_t k = 0; k < t.count; ++k) {
    const Segment& s = list[k];
    double* to = out + kSums * int64_t{s.group};
    if (k == 0 || list[k - 1].group != s.group) std::fill_n(to, kSums, 0.0);
    if (partial == nullptr || s.counted == 0) continue;
    const double* from = partial + kSums * (s.first_tile * (kSegmentTile / block));
    double total[kSums] = {};
    for (int64_t b = 0; b * block < s.count; ++b)
      for (int j = 0; j < kSums; ++j) total[j] += from[kSums * b + j];
    for (int j = 0; j < kSums; ++j) to[j] += total[j];
  }
}

}  // namespace gt::cpu
