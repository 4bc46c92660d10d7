// Pure functions of the parameter store: tensors in a flat buffer, and the logical index of a local element.
#include "parallel/zero/flat_layout.h"

#include "kernels/backend.h"
#include "parallel/zero/shard_view.h"
#include "parallel/zero/two_ended_pool.h"
#include "tests/support/test.h"

using namespace gt;

TEST_CASE("the flat layout shards tensors as specified") {
  const std::vector<int64_t> sizes{10, 7, 3};
  const FlatLayout l = flat_layout(sizes, 4, 2);
  CHECK(l.size == 24);
  CHECK(l.pad == 4);
  CHECK(l.shard == 6);
  CHECK(l.offset == std::vector<int64_t>{0, 10, 17});
  CHECK(l.segments[0] == std::vector<FlatSegment>{{0, 0, 6, 0}});
  CHECK(l.segments[1] == std::vector<FlatSegment>{{0, 6, 4, 6}, {1, 0, 2, 10}});
  CHECK(l.segments[2] == std::vector<FlatSegment>{{1, 2, 5, 12}, {2, 0, 1, 17}});
  CHECK(l.segments[3] == std::vector<FlatSegment>{{2, 1, 2, 18}});
}

TEST_CASE("flat layouts are aligned, cover every element once and may leave shards empty") {
  for (int shards : {1, 2, 3, 4, 7, 8})
    for (int64_t align : {1, 2, 64})
      for (const std::vector<int64_t>& sizes :
           std::vector<std::vector<int64_t>>{{1}, {10, 7, 3}, {64}, {65, 0, 1}, {1000, 1, 999}}) {
        const FlatLayout l = flat_layout(sizes, shards, align);
        int64_t total = 0;
        for (int64_t n : sizes) total += n;
        CHECK(l.size % (align * shards) == 0);
        CHECK(l.shard * shards == l.size);
        CHECK(l.pad == l.size - total);
        CHECK(l.pad < align * shards);
        std::vector<int64_t> covered(sizes.size());
        for (int r = 0; r < shards; ++r)
          for (const FlatSegment& g : l.segments[static_cast<size_t>(r)]) {
            const auto t = static_cast<size_t>(g.tensor);
            CHECK(g.count > 0);
            CHECK(g.begin == covered[t]);  // ascending, without gaps
            CHECK(g.at == l.offset[t] + g.begin);
            CHECK((g.at >= l.shard * r && g.at + g.count <= l.shard * (r + 1)));
            covered[t] += g.count;
          }
        CHECK(covered == sizes);
      }
  const std::vector<int64_t> one{1};
  const FlatLayout l = flat_layout(one, 4);
  CHECK(l.size == 256);
  CHECK(l.segments[1].empty());
  CHECK(l.segments[3].empty());
}

TEST_CASE("the ranks of a TP group cover every logical element exactly once") {
  const struct {
    Shape full;
    ShardSpec shard;
    int64_t pad;
  } kinds[] = {{{24, 5}, ShardSpec::split(0), 0},    {{24, 5}, ShardSpec::split(0, 3), 0},
               {{24}, ShardSpec::split(0, 3), 0},    {{5, 24}, ShardSpec::split(1), 0},
               {{5, 24}, ShardSpec::split(1, 3), 0}, {{13, 5}, ShardSpec::split(0), 16},
               {{3, 5}, ShardSpec::split(0), 16},    {{9}, ShardSpec::replicate(), 0}};
  for (const auto& kind : kinds)
    for (int tp : {1, 2, 4}) {
      const bool split = kind.shard.tp().splits();
      std::vector<int> times(static_cast<size_t>(kind.full.numel()));
      int64_t padding = 0;
      for (int rank = 0; rank < tp; ++rank) {
        ShardView v;
        v.full = v.local = kind.full;
        v.shard = kind.shard;
        v.at = RankCoordinates({rank, tp});
        v.pad_rows = kind.pad;
        if (kind.pad) v.local.dim[0] = kind.pad;
        if (split) v.local.dim[static_cast<size_t>(kind.shard.tp().dim)] /= tp;
        for (int64_t i = 0; i < v.local.numel(); ++i) {
          const int64_t at = logical_offset(v, i);
          if (at < 0)
            ++padding;
          else
            ++times.at(static_cast<size_t>(at));
        }
      }
      CHECK(times == std::vector<int>(times.size(), split ? 1 : tp));
      CHECK(padding == (kind.pad ? (kind.pad - kind.full[0]) * 5 : 0));
    }
  // Grouped-query attention: 4 heads of 3 rows, 2 of keys, 2 of values. Every KV head is on tp / 2 ranks.
  for (int tp : {1, 2, 4}) {
    std::vector<int> times(24 * 5, 0);
    const ShardSpec qkv = ShardSpec::qkv(4, 2);
    const int copies = tp == 4 ? 2 : 1;
    CHECK(qkv.tp().copies(tp) == copies);
    CHECK(unshared_extent(qkv.tp(), 24, tp) == (tp == 4 ? 3 : 24 / tp));
    for (int rank = 0; rank < tp; ++rank) {
      ShardView v;
      v.full = {24, 5};
      v.local = {local_extent(qkv.tp(), 24, tp), 5};
      v.shard = qkv;
      v.at = RankCoordinates({rank, tp});
      for (int64_t i = 0; i < v.local.numel(); ++i) ++times.at(static_cast<size_t>(logical_offset(v, i)));
    }
    std::vector<int> expected(24 * 5, 1);
    std::fill(expected.begin() + 12 * 5, expected.end(), copies);
    CHECK(times == expected);
  }
  const RankCoordinates fourth({3, 4});
  CHECK(logical_index(ShardSpec::qkv(4, 2), 0, 24, 3, fourth) == 15);  // the fourth rank's first row of keys
  CHECK(logical_index(ShardSpec::qkv(4, 2), 0, 24, 6, fourth) == 21);  // and of values
  CHECK(logical_index(ShardSpec::qkv(4, 1), 0, 18, 3, RankCoordinates({2, 4})) == 12);
  for (const auto& [heads, kv, tp] : {std::tuple{4, 3, 2}, {4, 2, 3}, {6, 3, 4}, {6, 2, 4}})
    CHECK(local_extent(ShardSpec::qkv(heads, kv).tp(), (heads + 2 * kv) * 3, tp) == -1);
  // [Q; K; V] of 4 rows each over 2 ranks: the second holds rows 2 3, 6 7, 10 11.
  ShardView v;
  v.full = {12, 2};
  v.local = {6, 2};
  v.shard = ShardSpec::split(0, 3);
  v.at = RankCoordinates({1, 2});
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < 6; ++i) rows.push_back(logical_offset(v, 2 * i) / 2);
  CHECK(rows == std::vector<int64_t>{2, 3, 6, 7, 10, 11});
  // Over ep and, of what that leaves, over tp: the second of 2 and the first of 3 ranks hold rows 6 7 of 12.
  v.local = {2, 2};
  v.shard = ShardSpec::split(0, 1, Axis::kEp).then(ShardSpec::split(0));
  v.at = RankCoordinates({0, 3});
  v.at[Axis::kEp] = {1, 2};
  CHECK(logical_offset(v, 0) == 12);
  CHECK(logical_offset(v, 3) == 15);
}

TEST_CASE("the ranks of two axes cover every logical element exactly once, along one dimension or two") {
  const ShardSpec ep_rows = ShardSpec::split(0, 1, Axis::kEp), ep_cols = ShardSpec::split(1, 1, Axis::kEp);
  const ShardSpec tp_rows = ShardSpec::split(0), tp_cols = ShardSpec::split(1), gated = ShardSpec::split(1, 2);
  for (const Shape& full : {Shape{24, 24}, Shape{12, 24, 5}, Shape{12, 24, 3, 2}})
    for (const ShardSpec& spec :
         {ep_rows, ep_rows.then(tp_rows), tp_rows.then(ep_rows), ep_rows.then(tp_cols), ep_rows.then(gated),
          gated.then(ep_cols), ep_cols.then(gated), ep_cols.then(ShardSpec::qkv(4, 1))})
      for (const int ep : {1, 2, 3})
        for (const int tp : {1, 2}) {
          INFO(to_string(full) << " ep " << ep << " tp " << tp);
          std::vector<int> times(static_cast<size_t>(full.numel()));
          ShardView v;
          v.full = v.local = full;
          v.shard = spec;
          for (int rank = 0; rank < ep * tp; ++rank) {
            v.at[Axis::kEp] = {rank / tp, ep}, v.at[Axis::kTp] = {rank % tp, tp};
            for (int d = 0; d < full.rank; ++d)
              v.local.dim[static_cast<size_t>(d)] = local_extent(spec, d, full[d], v.at);
            for (int64_t i = 0; i < v.local.numel(); ++i) ++times.at(static_cast<size_t>(logical_offset(v, i)));
          }
          // KV heads that the two TP ranks share are held twice, and so is all of what tp does not split.
          const int64_t held = std::accumulate(times.begin(), times.end(), int64_t{0});
          const bool shares = spec.tp().heads > 0 && tp == 2;
          CHECK(held == full.numel() * (shares ? 4 : 3) / 3 * (spec.tp().named() ? 1 : tp));
          CHECK(std::count(times.begin(), times.end(), 0) == 0);
        }
}

TEST_CASE("a two-ended pool places neighbors of a window at opposite ends and needs their sum") {
  const auto bytes = [](int64_t n) { return Shape{n * kAlign / 4}; };
  const auto rolling = [&](int64_t capacity, int64_t& needed) {
    TwoEndedPool pool(Buffer(capacity, {}, *cpu_backend().device));
    std::vector<const std::byte*> addresses;
    Tensor before = pool.alloc(bytes(1), DType::kF32);
    for (int64_t n : {3, 1, 5, 2, 2, 4}) {  // each allocated before the previous one is freed
      Tensor next = pool.alloc(bytes(n), DType::kF32);
      CHECK((next.data + next.bytes() <= before.data || before.data + before.bytes() <= next.data));
      addresses.push_back(next.data);
      pool.free(before);
      before = next;
    }
    needed = pool.high_water();
    CHECK_THROWS_WITH(pool.free(Tensor{}), Catch::Contains("not a live block"));
  };
  int64_t plenty = 0, exact = 0;
  rolling(1 << 20, plenty);
  CHECK(plenty == 7 * kAlign);  // 5 and 2
  rolling(plenty, exact);       // a buffer of the size a dry run measured is enough
  CHECK(exact == plenty);
  CHECK_THROWS_WITH(rolling(plenty - kAlign, exact), Catch::Contains("gathered parameters need"));
}

TEST_CASE("replicated shards are assigned to TP ranks by bytes, each to one rank, and again when views are added") {
  const auto pieces = [](int tp, int rank) {
    std::vector<ShardView> out;
    for (const int64_t n : {100, 60, 60, 50, 40, 10})
      out.push_back({.name = "p" + std::to_string(out.size()),
                     .data = {nullptr, {n}, DType::kF32, {}},
                     .full = {n},
                     .local = {n},
                     .at = RankCoordinates({rank, tp})});
    out.push_back({.name = "cut",
                   .data = {nullptr, {1000}, DType::kF32, {}},
                   .full = {1000 * tp},
                   .local = {1000},
                   .shard = ShardSpec::split(0),
                   .at = RankCoordinates({rank, tp})});
    out.push_back(out[0]);
    out.back().save = false;  // another rank's: never selected
    return out;
  };
  const auto saved = [](const std::vector<ShardView>& views) {
    std::string out;
    for (const ShardView& v : views) out += v.save ? '1' : '0';
    return out;
  };
  std::vector<ShardView> first = pieces(2, 0), second = pieces(2, 1);
  assign_over_tp(first), assign_over_tp(second);
  CHECK(saved(first) == "10010110");  // 160 elements each
  CHECK(saved(second) == "01101010");
  for (auto* views : {&first, &second}) {
    const std::vector<ShardView> more = pieces(2, views == &first ? 0 : 1);
    views->insert(views->end(), more.begin(), more.end());
    for (size_t k = 8; k < views->size(); ++k) (*views)[k].name = "q" + std::to_string(k);
    assign_over_tp(*views);
  }
  int64_t sum[2] = {0, 0};
  for (size_t k = 0; k < first.size(); ++k) {
    if (k % 8 < 6) CHECK(first[k].save != second[k].save);
    for (int r : {0, 1})
      if (k % 8 < 6 && (r == 0 ? first : second)[k].save) sum[r] += first[k].data.numel();
  }
  CHECK(sum[0] == 320);
  CHECK(sum[1] == 320);
}
