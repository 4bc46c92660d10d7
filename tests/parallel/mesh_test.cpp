#include "parallel/mesh.h"

#include <algorithm>
#include <numeric>
#include <thread>

#include "parallel/comm/null_group.h"
#include "parallel/comm/self_group.h"
#include "parallel/comm/threads/thread_group.h"
#include "tests/support/test.h"

using namespace gt;
using Lines = std::vector<std::vector<int>>;

namespace {
Lines lines(const MeshShape& s, Axis a) {
  Lines all;
  for (int r = 0; r < s.world(); ++r) {
    if (s.coord(a, r) == 0) all.push_back(s.members(a, r));
  }
  return all;
}
}  // namespace

TEST_CASE("pp = dp = tp = 2 has the groups of the specification") {
  const MeshShape s{.pp = 2, .dp = 2, .tp = 2};
  REQUIRE(lines(s, Axis::kPp) == Lines{{0, 4}, {1, 5}, {2, 6}, {3, 7}});
  REQUIRE(lines(s, Axis::kDp) == Lines{{0, 2}, {1, 3}, {4, 6}, {5, 7}});
  REQUIRE(lines(s, Axis::kTp) == Lines{{0, 1}, {2, 3}, {4, 5}, {6, 7}});
  REQUIRE(s.coordinates(5) == "pp1 dp0 tp1");
}

TEST_CASE("rank is ((pp DP + dp) CP + cp) TP + tp, for all coordinates of uneven meshes") {
  const MeshShape s{.pp = 3, .dp = 2, .cp = 2, .tp = 5};
  for (int r = 0; r < s.world(); ++r) {
    REQUIRE(((s.coord(Axis::kPp, r) * 2 + s.coord(Axis::kDp, r)) * 2 + s.coord(Axis::kCp, r)) * 5 +
                s.coord(Axis::kTp, r) ==
            r);
    for (Axis a : {Axis::kPp, Axis::kDp, Axis::kCp, Axis::kTp, Axis::kEp}) {
      const std::vector<int> line = s.members(a, r);
      REQUIRE(static_cast<int>(line.size()) == s.size(a));
      REQUIRE(line[static_cast<size_t>(s.coord(a, r))] == r);
      for (int i = 0; i < s.size(a); ++i) {  // only this coordinate differs, ascending
        REQUIRE(s.coord(a, line[static_cast<size_t>(i)]) == i);
        for (Axis b : {Axis::kPp, Axis::kDp, Axis::kCp, Axis::kTp}) {
          if (a != b) REQUIRE(s.coord(b, line[static_cast<size_t>(i)]) == s.coord(b, r));
        }
      }
    }
  }
}

TEST_CASE("a mesh that does not fill the world is an error with all the sizes") {
  NullFactory f(0, 6);
  REQUIRE_THROWS_WITH(Mesh({.pp = 2, .dp = 2, .tp = 2}, f),
                      Catch::Contains("pp 2 x dp 2 x cp 1 x tp 2 needs 8 ranks, but 6 were started"));
  REQUIRE_THROWS_WITH(Mesh({.pp = 0}, f), Catch::Contains("at least 1"));
  REQUIRE_THROWS_WITH(Mesh({.dp = 3, .ep = 4, .cp = 2}, f),
                      Catch::Contains("ep 4 x etp 1 does not divide dp 3 x cp 2 x tp 1"));
  try {
    Mesh({.pp = 2}, f);
  } catch (const Error& e) { REQUIRE(e.code() == Exit::kUsage); }
}

TEST_CASE("expert axes are another view of the ranks that hold a stage's data") {
  const MeshShape s{.pp = 2, .dp = 4, .ep = 2, .cp = 1, .tp = 2};
  REQUIRE(lines(s, Axis::kEp) == Lines{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}, {12, 14}, {13, 15}});
  REQUIRE(s.members(Axis::kExpertDp, 0) == std::vector<int>{0, 4});
  REQUIRE(s.members(Axis::kExpertDp, 15) == std::vector<int>{11, 15});
  REQUIRE(s.members({Axis::kExpertDp, Axis::kEp}, 9) == s.members({Axis::kDp, Axis::kCp}, 9));
  const MeshShape both{.pp = 1, .dp = 2, .ep = 4, .cp = 2, .tp = 3};  // ep over dp and cp
  for (int r = 0; r < both.world(); ++r) {
    CHECK(both.members(Axis::kEp, r) == both.members({Axis::kDp, Axis::kCp}, r));
    CHECK(both.members(Axis::kExpertDp, r) == std::vector<int>{r});
  }
  REQUIRE_THROWS_WITH(s.members({Axis::kDp, Axis::kEp}, 0), Catch::Contains("dp_ep: mixes dense (dp, cp) and expert"));
}

TEST_CASE("tensor parallelism of experts folds the ranks of a stage in another way than that of attention") {
  const MeshShape s{.pp = 2, .dp = 2, .ep = 4, .cp = 1, .tp = 4, .etp = 1};  // 8 ranks a stage
  CHECK(s.members(Axis::kEp, 5) == std::vector<int>{4, 5, 6, 7});
  CHECK(s.members(Axis::kExpertDp, 9) == std::vector<int>{9, 13});
  CHECK(s.members({Axis::kExpertDp, Axis::kEp, Axis::kEtp}, 3) == s.members({Axis::kDp, Axis::kTp}, 3));
  CHECK(s.coordinates(14) == "pp1 dp1 ep2 etp0 tp2");
  for (const MeshShape& m : {MeshShape{.pp = 2, .dp = 3, .ep = 4, .cp = 2, .tp = 4, .etp = 2},
                             MeshShape{.dp = 2, .ep = 2, .cp = 3, .tp = 2, .etp = 6},
                             MeshShape{.ep = 8, .tp = 8, .etp = 1}, MeshShape{.dp = 4, .ep = 1, .tp = 1, .etp = 4}})
    for (int r = 0; r < m.world(); ++r) {
      const int etp = m.size(Axis::kEtp), edp = m.size(Axis::kExpertDp);
      CHECK(((m.coord(Axis::kPp, r) * edp + m.coord(Axis::kExpertDp, r)) * m.ep + m.coord(Axis::kEp, r)) * etp +
                m.coord(Axis::kEtp, r) ==
            r);
      CHECK(edp * m.ep * etp == m.dp * m.cp * m.tp);
      for (const Axis a : {Axis::kExpertDp, Axis::kEp, Axis::kEtp}) {
        const std::vector<int> line = m.members(a, r);
        for (int i = 0; i < m.size(a); ++i) {
          CHECK(m.coord(a, line[static_cast<size_t>(i)]) == i);
          for (const Axis b : {Axis::kPp, Axis::kExpertDp, Axis::kEp, Axis::kEtp})
            if (b != a) CHECK(m.coord(b, line[static_cast<size_t>(i)]) == m.coord(b, r));
        }
      }
    }
  REQUIRE_THROWS_WITH(s.members({Axis::kTp, Axis::kEp}, 0),
                      Catch::Contains("ep_tp: mixes dense (dp, cp, tp) and expert (expert_dp, ep, etp) axes"));
  NullFactory f(6, 16, 8);
  const Mesh mesh(s, f);
  CHECK(mesh.group(Axis::kEtp).size() == 1);
  CHECK(mesh.group(Axis::kEp).label() == "ep group [4,5,6,7]");
  CHECK(mesh.group(Axis::kExpertDp).label() == "expert_dp group [2,6]");
  NullFactory g(6, 16, 8);
  const Mesh wide({.dp = 2, .ep = 2, .cp = 2, .tp = 4, .etp = 8}, g);
  CHECK(wide.group(Axis::kEtp).label() == "etp group [0,1,2,3,4,5,6,7]");
  CHECK(wide.group(Axis::kTp).label() == "tp group [4,5,6,7]");
  NullFactory h(6, 16, 8);
  const Mesh same({.dp = 2, .ep = 4, .cp = 2, .tp = 4}, h);  // etp is tp by default
  CHECK(&same.group(Axis::kEtp) == &same.group(Axis::kTp));
  NullFactory e(0, 8);
  REQUIRE_THROWS_WITH(Mesh({.dp = 2, .ep = 2, .tp = 4, .etp = 3}, e),
                      Catch::Contains("ep 2 x etp 3 does not divide dp 2 x cp 1 x tp 4"));
}

TEST_CASE("groups over neighboring axes have their ranks in ascending order") {
  const MeshShape s{.pp = 2, .dp = 3, .cp = 2, .tp = 2};
  REQUIRE(s.members({Axis::kDp, Axis::kCp}, 13) == std::vector<int>{13, 15, 17, 19, 21, 23});
  REQUIRE(s.members({Axis::kCp, Axis::kTp}, 6) == std::vector<int>{4, 5, 6, 7});
  std::vector<int> all(24);
  std::iota(all.begin(), all.end(), 0);
  REQUIRE(s.members({Axis::kPp, Axis::kDp, Axis::kCp, Axis::kTp}, 17) == all);
}

TEST_CASE("a mesh has the groups of its axes and of dp x cp, one for each set of ranks") {
  NullFactory f(5, 16, 8);
  const Mesh m({.pp = 1, .dp = 4, .ep = 2, .cp = 2, .tp = 2}, f);
  const AxisSet dense{Axis::kDp, Axis::kCp}, experts{Axis::kExpertDp, Axis::kEp};
  CHECK(m.group(dense).size() == 8);
  CHECK(&m.group(experts) == &m.group(dense));
  CHECK(m.domain(dense).rank == 2);
  CHECK(m.domain(Axis::kExpertDp).size == 4);
  CHECK(m.domain(Axis::kEp).size == 2);
  CHECK(m.group(dense).label() == "dp_cp group [1,3,5,7,9,11,13,15]");
  REQUIRE_THROWS_WITH(m.group({Axis::kDp, Axis::kTp}), Catch::Contains("no group over dp_tp"));
  NullFactory g(5, 16, 8);
  const Mesh plain({.dp = 8, .tp = 2}, g);
  CHECK(&plain.group(dense) == &plain.group(Axis::kDp));
  CHECK(&plain.group(Axis::kExpertDp) == &plain.group(Axis::kDp));
  CHECK(plain.domain(Axis::kEp).size == 1);
}

TEST_CASE("one rank: every group is a self group whose collectives do nothing") {
  SelfFactory f;
  Mesh m({}, f);
  float x = 3;
  const Tensor t{reinterpret_cast<std::byte*>(&x), {1}, DType::kF32, {}};
  for (Axis a : {Axis::kPp, Axis::kDp, Axis::kExpertDp, Axis::kEp, Axis::kCp, Axis::kTp, Axis::kEtp}) {
    REQUIRE(m.group(a).size() == 1);
    REQUIRE(m.group(a).rank() == 0);
    m.group(a).all_reduce(t, ReduceOp::kSum, {}).wait({});
  }
  REQUIRE(m.world().size() == 1);
  REQUIRE(m.embedding_group().size() == 1);
  REQUIRE(x == 3);
  REQUIRE(m.first_stage());
  REQUIRE(m.last_stage());
}

TEST_CASE("null factories plan any rank of a large world") {
  NullFactory f(1234, 4096, 8);
  Mesh m({.pp = 8, .dp = 64, .tp = 8}, f);
  REQUIRE(m.coordinates() == "pp2 dp26 tp2");
  REQUIRE(m.group(Axis::kDp).size() == 64);
  REQUIRE(m.group(Axis::kDp).rank() == 26);
  REQUIRE(m.embedding_group().size() == 1);
  REQUIRE(f.local_rank() == 2);
  const Tensor t{nullptr, {640}, DType::kF32, {DeviceKind::kNull, 0}};
  m.group(Axis::kDp).all_reduce(t, ReduceOp::kSum, {}).wait({});
  REQUIRE(m.group(Axis::kDp).counters().bytes(CommOp::kAllReduce) == 2 * 640 * 63 / 64 * 4);
}

TEST_CASE(
    "groups of a thread mesh connect the ranks of their line, and the embedding group joins first and last stage") {
  const MeshShape s{.pp = 4, .dp = 1, .tp = 2};
  ThreadWorld world(8, std::chrono::seconds(30));
  std::vector<std::string> errors(8);
  std::vector<std::thread> threads;
  for (int r = 0; r < 8; ++r) {
    threads.emplace_back([&, r] {
      try {
        auto f = world.factory(r);
        Mesh m(s, *f);
        for (Axis a : {Axis::kPp, Axis::kDp, Axis::kTp}) {
          int32_t mine = r;
          std::vector<int32_t> got(static_cast<size_t>(m.size(a)));
          m.group(a)
              .all_gather({reinterpret_cast<std::byte*>(&mine), {1}, DType::kI32, {}},
                          {reinterpret_cast<std::byte*>(got.data()), {m.size(a)}, DType::kI32, {}}, {})
              .wait({});
          const auto line = s.members(a, r);
          GT_CHECK(std::equal(line.begin(), line.end(), got.begin(), got.end()), "axis ", static_cast<int>(a));
        }
        GT_CHECK(m.group(Axis::kTp).label() == (r < 2 ? "tp group [0,1]" : m.group(Axis::kTp).label()),
                 m.group(Axis::kTp).label());
        int64_t x = r;
        m.embedding_group()
            .all_reduce({reinterpret_cast<std::byte*>(&x), {1}, DType::kI64, {}}, ReduceOp::kSum, {})
            .wait({});
        const bool end = r < 2 || r >= 6;
        GT_CHECK(m.embedding_group().size() == (end ? 2 : 1), "ends of size ", m.embedding_group().size());
        GT_CHECK(x == (end ? (r < 2 ? r + r + 6 : r + r - 6) : r), "ends sum ", x);
        m.world().barrier();
      } catch (const std::exception& e) {
        errors[static_cast<size_t>(r)] = e.what();
        world.abort(r, e.what());
      }
    });
  }
  for (auto& t : threads) t.join();
  for (const auto& e : errors) REQUIRE(e == "");
}
