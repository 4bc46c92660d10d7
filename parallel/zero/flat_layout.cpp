#include "parallel/zero/flat_layout.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace gt {

FlatLayout flat_layout(std::span<const int64_t> numels, int shards, int64_t align) {
  GT_CHECK(shards >= 1 && align >= 1, "shards ", shards, " align ", align);
  FlatLayout l;
  int64_t used = 0;
  for (int64_t n : numels) {
    l.offset.push_back(used);
    used += n;
  }
  const int64_t unit = align * shards;
  l.size = (used + unit - 1) / unit * unit;
  l.pad = l.size - used;
  l.shard = l.size / shards;
  l.segments.resize(static_cast<size_t>(shards));
  for (int r = 0; r < shards; ++r)
    for (size_t t = 0; t < numels.size(); ++t) {
      const int64_t begin = std::max(l.shard * r, l.offset[t]),
                    end = std::min(l.shard * (r + 1), l.offset[t] + numels[t]);
      if (begin < end)
        l.segments[static_cast<size_t>(r)].push_back({static_cast<int>(t), begin - l.offset[t], end - begin, begin});
    }
  return l;
}

}  // namespace gt
