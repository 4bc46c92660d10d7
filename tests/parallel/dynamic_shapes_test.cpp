// Boundary messages: microbatches of different shapes train as on one rank, headers are exactly the specified bytes,
// and ranks with different microbatches get an error on both sides.
#include <cstring>

#include "tests/parallel/toy_ranks.h"
#include "tests/support/test.h"

using namespace gt;
using namespace gt::toy;
using Catch::Contains;

namespace {

struct Case {
  const char* name;
  int v;
};
constexpr Case kCases[] = {{"gpipe", 1}, {"1f1b", 1}, {"zb-h1", 1}, {"interleaved", 2}, {"interleaved", 3}};

// Errors of all ranks, "" for none. Rank r steps with batches(r).
template <class Make>
std::vector<std::string> errors_of(const PipelineSchedule& s, BoundaryOptions boundaries, Make batches) {
  std::vector<std::string> errors(static_cast<size_t>(s.ranks));
  try {
    on_ranks(s.ranks, [&](int r, const Mesh& mesh) {
      try {
        Rank rank(s, mesh, kGenerous, 0, boundaries);
        rank.step(batches(r));
      } catch (const Error& e) {
        errors[static_cast<size_t>(r)] = e.what();
        throw;
      }
    });
  } catch (const Error&) {  // recorded above
  }
  return errors;
}

}  // namespace

TEST_CASE("microbatches of different lengths train as on one rank under every schedule") {
  const int m = 7;
  // the second step has longer microbatches
  const Outcome expected[2] = {on_one_rank(m, 0, true), on_one_rank(m, 1, true)};
  REQUIRE_FALSE(expected[0].same_bits(on_one_rank(m, 0)));
  for (const Case c : kCases)
    for (int p : {2, 3, 4})
      for (bool ordinals : {false, true}) {
        CAPTURE(c.name, c.v, p, ordinals);
        Outcome got[2];
        std::mutex guard;
        REQUIRE_NOTHROW(on_ranks(p, [&](int r, const Mesh& mesh) {
          Rank rank(make_schedule(c.name, p, c.v, m), mesh, kGenerous, 0, {true, ordinals});
          for (int step = 0; step < 2; ++step) {
            rank.step(Batches(m, step, true));
            const std::lock_guard lock(guard);
            got[step].add(rank, r == p - 1);
          }
        }));
        CHECK(got[0].same_bits(expected[0]));
        CHECK(got[1].same_bits(expected[1]));
      }
}

TEST_CASE("evaluation of microbatches of different lengths returns one rank's losses") {
  const Outcome expected = on_one_rank(6, 0, true);
  std::vector<double> losses;
  std::mutex guard;
  on_ranks(3, [&](int r, const Mesh& mesh) {
    Rank rank(make_schedule("forward", 3, 2, 6), mesh, kGenerous, 0, {true, true});
    rank.step(Batches(6, 0, true));
    const std::lock_guard lock(guard);
    if (r == 2) losses = rank.losses;
  });
  CHECK(losses == expected.losses);
}

TEST_CASE("the header of a boundary message is exactly the specified 48 bytes") {
  MicroBatch mb;
  mb.first_sample = 40;
  mb.batch = 2;
  const Preamble p = preamble_of({6, 4}, DType::kF32, mb, 3, BoundaryKind::kGradient);
  const uint8_t expected[64] = {
      0x47, 0x54, 0x50, 0x31, 0, 0, 2, 0,  // magic "GTP1", dtype f32, rank 2
      6,    0,    0,    0,    0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
      0,    0,    0,    0,    0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0,  // microbatch, kind
      40,   0,    0,    0,    0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0};             // debug builds: ordinals
  CHECK(std::memcmp(&p, expected, sizeof expected) == 0);
  CHECK(BoundaryOptions{true, false}.preamble_bytes() == 48);
  CHECK(BoundaryOptions{true, true}.preamble_bytes() == 64);
  CHECK(BoundaryOptions{false, true}.preamble_bytes() == 64);
  CHECK(BoundaryOptions{false, false}.preamble_bytes() == 0);
}

TEST_CASE("each boundary message sends its tensor, plus its header where shapes may differ") {
  const int p = 3, m = 5;
  for (const bool dynamic : {false, true})
    for (const bool ordinals : {false, true}) {
      CAPTURE(dynamic, ordinals);
      std::vector<int64_t> sent(p);
      on_ranks(p, [&](int r, const Mesh& mesh) {
        Rank rank(make_schedule("1f1b", p, 1, m), mesh, kGenerous, 0, {dynamic, ordinals});
        rank.step(Batches(m, 0));
        sent[static_cast<size_t>(r)] = mesh.group(Axis::kPp).counters().bytes(CommOp::kSend);
      });
      const int64_t message = kElements * 4 + (ordinals ? 64 : dynamic ? 48 : 0);
      CHECK(sent == std::vector<int64_t>{m * message, 2 * m * message, m * message});
    }
}

TEST_CASE("without dynamic shapes a microbatch of another shape is refused before anything runs") {
  const auto make = [](int) { return Batches(4, 0, true); };
  const auto errors = errors_of(make_schedule("1f1b", 2, 1, 4), {false, false}, make);
  for (const std::string& e : errors)
    CHECK_THAT(
        e, Contains("microbatch 1") && Contains("[8, 4]") && Contains("[2, 4]") && Contains("parallel.dynamic_shapes"));
}

TEST_CASE("ranks whose microbatches differ in shape get an error on both sides") {
  const auto make = [](int r) { return r == 0 ? Batches(4, 0) : Batches(4, 0, true); };
  for (const Case c : kCases) {
    const PipelineSchedule s = make_schedule(c.name, 2, c.v, 4);
    CAPTURE(c.name);
    const auto on = errors_of(s, {true, false}, make);
    CHECK_THAT(on[1], Contains("F<0") && Contains("activation f32 [6, 4]") && Contains("expects") &&
                          Contains("[2, 4] of microbatch 0"));
    CHECK_THAT(on[0], Contains("rank 1"));
  }
  const auto shorter = [](int r) {
    Batches b(4, 0);
    for (MicroBatch& mb : b.list) mb.seq = r == 0 ? 3 : 2;
    return b;
  };
  const auto off = errors_of(make_schedule("1f1b", 2, 1, 4), {false, false}, shorter);
  CHECK_THAT(off[0], Contains("24") && Contains("16"));
  CHECK_THAT(off[1], Contains("24") && Contains("16"));
}

TEST_CASE("ranks with different samples get an error, with and without dynamic shapes") {
  for (const bool dynamic : {false, true}) {
    CAPTURE(dynamic);
    const auto errors = errors_of(make_schedule("1f1b", 2, 1, 4), {dynamic, true}, [](int r) {
      Batches b(4, 0);
      if (r == 1) b.list[2].first_sample += 1;
      return b;
    });
    CHECK_THAT(errors[1],
               Contains("1F<2") && Contains("2 samples from ordinal 4") && Contains("2 from 5") && Contains("labels"));
    CHECK_THAT(errors[0], Contains("rank 1"));
  }
}

TEST_CASE("a message without a header is distinguished from one of another shape") {
  const Preamble expected = preamble_of({2, 3}, DType::kF32, {}, 0, BoundaryKind::kActivation);
  Preamble got = expected;
  CHECK(as_announced(got, expected, true));
  got.samples = 7;
  CHECK(as_announced(got, expected, false));
  CHECK_FALSE(as_announced(got, expected, true));
  CHECK_THROWS_WITH(throw_mismatch(got, expected, "1F<0"), Contains("1F<0") && Contains("7 samples"));
  got.header.kind = BoundaryKind::kGradient;
  CHECK_THROWS_WITH(throw_mismatch(got, expected, "1F<0"), Contains("a gradient f32 [2, 3]"));
  got.header.magic = 0x3f800000;
  CHECK_THROWS_WITH(throw_mismatch(got, expected, "1F<0"), Contains("invalid boundary message header"));
}
