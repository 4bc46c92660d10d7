// Generators, passes and the text form: exact fixtures, and error messages for invalid text.
#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "kernels/core/check.h"
#include "parallel/pipeline/pipeline_schedule.h"
#include "parallel/pipeline/simulate.h"
#include "tests/support/paths.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

std::string compute_only(const PipelineSchedule& s, int rank) {
  return to_string(s.program[static_cast<size_t>(rank)]);
}

std::string why(const std::string& text) {
  try {
    parse_schedule(text);
  } catch (const Error& e) {
    CHECK(e.code() == Exit::kUsage);
    return e.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("1F1B on two ranks has exactly the specified programs") {
  CHECK(to_string(make_schedule("1f1b", 2, 1, 4)) ==
        "0F0 0F>0 0F1 0F>1 0B<0 0B0 0F2 0F>2 0B<1 0B1 0F3 0F>3 0B<2 0B2 0B<3 0B3 0G\n"
        "1F<0 1F0 1F<1 1B0 1B>0 1F1 1F<2 1B1 1B>1 1F2 1F<3 1B2 1B>2 1F3 1B3 1B>3 1G\n");
}

TEST_CASE("ZB-H1 on two ranks has exactly the specified programs") {
  CHECK(to_string(make_schedule("zb-h1", 2, 1, 3)) ==
        "0F0 0F>0 0F1 0F>1 0B<0 0I0 0W0 0B<1 0F2 0F>2 0I1 0W1 0B<2 0I2 0W2 0G\n"
        "1F<0 1F0 1F<1 1I0 1B>0 1F1 1I1 1B>1 1F<2 1W0 1F2 1I2 1B>2 1W1 1W2 1G\n");
}

TEST_CASE("generators write compute actions only") {
  CHECK(compute_only(gpipe(2, 3), 0) == "0F0 0F1 0F2 0B0 0B1 0B2");
  CHECK(compute_only(one_f_one_b(3, 2), 0) == "0F0 0F1 0B0 0B1");
  CHECK(compute_only(one_f_one_b(3, 2), 2) == "2F0 2B0 2F1 2B1");
  CHECK(compute_only(forward_only(2, 2, 2), 1) == "1F0 1F1 3F0 3F1");
}

TEST_CASE("the interleaved schedule traverses chunks group by group, the first group being the larger one") {
  // p 2, v 2, m 3: one group of 3, so warm-up on rank 0 is 2 + 3 forwards.
  CHECK(compute_only(interleaved(2, 2, 3), 0) == "0F0 0F1 0F2 2F0 2F1 2F2 2B0 2B1 2B2 0B0 0B1 0B2");
  CHECK(compute_only(interleaved(2, 2, 3), 1) == "1F0 1F1 1F2 3F0 3B0 3F1 3B1 3F2 3B2 1B0 1B1 1B2");
  // m 5 at p 2: groups of 3 and 2, visible in the forward order of rank 0.
  const PipelineSchedule s = interleaved(2, 2, 5);
  std::string forwards;
  for (const Action& a : s.program[0])
    if (a.act == Act::kForward) forwards += to_string(Program{a}) + ' ';
  CHECK(forwards == "0F0 0F1 0F2 2F0 2F1 2F2 0F3 0F4 2F3 2F4 ");
}

TEST_CASE("one rank sends no messages and passes tensors in memory") {
  CHECK(to_string(make_schedule("1f1b", 1, 1, 2)) == "0F0 0B0 0F1 0B1 0G\n");
  CHECK(to_string(make_schedule("interleaved", 1, 2, 1)) == "0F0 1F0 1B0 1G 0B0 0G\n");
}

TEST_CASE("tied weights end the programs of the first and the last rank") {
  const PipelineSchedule s = make_schedule("1f1b", 3, 1, 2, true);
  CHECK(s.program[0].back() == Action{Act::kReduceTied, 0});
  CHECK(s.program[2].back() == Action{Act::kReduceTied, 2});
  CHECK(s.program[1].back() == Action{Act::kReduceGrads, 1});
  CHECK(to_string(make_schedule("gpipe", 1, 1, 1, true)) == "0F0 0B0 0G 0T\n");
  CHECK(to_string(make_schedule("forward", 2, 1, 1, true)) == "0F0 0F>0\n1F<0 1F0\n");
}

TEST_CASE("the position of G after its stage's last backward does not depend on the order of the two passes") {
  PipelineSchedule a = one_f_one_b(4, 6), b = a;
  add_reduce_grads(a, true);
  add_send_recv(a);
  add_send_recv(b);
  add_reduce_grads(b, true);
  CHECK(to_string(a) == to_string(b));
}

TEST_CASE("a pass that finds no order names the waiting ranks") {
  PipelineSchedule s = one_f_one_b(2, 1);
  std::swap(s.program[0][0], s.program[0][1]);  // B before F: rank 1 never receives its input
  CHECK_THROWS_WITH(add_send_recv(s), Contains("rank 0 before 0B0") && Contains("rank 1 before 1F0"));
  PipelineSchedule twice = make_schedule("1f1b", 2, 1, 1);
  CHECK_THROWS_WITH(add_send_recv(twice), Contains("already"));
}

TEST_CASE("invalid names and sizes are refused with the alternatives") {
  CHECK_THROWS_WITH(make_schedule("1f1", 2, 1, 4),
                    Contains("'1f1'") && Contains("gpipe, 1f1b, interleaved, zb-h1, forward"));
  CHECK_THROWS_WITH(make_schedule("1f1b", 2, 2, 4), Contains("vpp is 2") && Contains("interleaved"));
  CHECK_THROWS_WITH(make_schedule("gpipe", 2, 1, 0), Contains("microbatches 0"));
  CHECK_THROWS_WITH(make_schedule("gpipe", 0, 1, 1), Contains("pp 0"));
  CHECK_THROWS_WITH(make_schedule("gpipe", 1, 1, 40000), Contains("40000"));
}

TEST_CASE("the text form round-trips") {
  for (const std::string& name : schedule_names())
    for (const int p : {1, 2, 3, 5})
      for (const int m : {1, 2, 7, 12}) {
        const PipelineSchedule s = make_schedule(name, p, name == "interleaved" ? 3 : 1, m, true);
        const PipelineSchedule t = parse_schedule("# a comment\n\n" + to_string(s));
        CHECK(t.program == s.program);
        CHECK(t.ranks == s.ranks);
        CHECK(t.stages == s.stages);
        CHECK(t.microbatches == s.microbatches);
      }
}

TEST_CASE("the example schedule of the configs folder is 1F1B") {
  std::ifstream in(source_dir() + "/configs/schedules/1f1b-p2-m4.schedule");
  REQUIRE(in.good());
  std::ostringstream text;
  text << in.rdbuf();
  const PipelineSchedule s = parse_schedule(text.str());
  CHECK(to_string(s) == to_string(make_schedule("1f1b", 2, 1, 4)));
  CHECK_NOTHROW(simulate(s));
}

TEST_CASE("an error in schedule text names line, token and the nearest legal one") {
  CHECK_THAT(why("0F0 0X0\n"),
             Contains("line 1, token 2 '0X0'") && Contains("unknown act 'X'") && Contains("F> F< B> B<"));
  CHECK_THAT(why("# two ranks\n0F0\n\n1f0\n"), Contains("line 4, token 1 '1f0'") && Contains("nearest legal: '1F0'"));
  CHECK_THAT(why("0F0 0FF1\n"), Contains("token 2 '0FF1'") && Contains("nearest legal: '0F1'"));
  CHECK_THAT(why("0F0 F1\n"), Contains("'F1'") && Contains("begins with its virtual stage") && Contains("'0F1'"));
  CHECK_THAT(why("0F\n"), Contains("'0F'") && Contains("needs a microbatch") && Contains("'0F0'"));
  CHECK_THAT(why("0G3\n"), Contains("'0G3'") && Contains("nearest legal: '0G'"));
  CHECK_THAT(why("0F0,0F1\n"), Contains("separate tokens with spaces"));
  CHECK_THAT(why("0F99999\n"), Contains("too large"));
  CHECK_THAT(why("0F99999999999999999999\n"), Contains("too large"));
  CHECK_THAT(why("0F0\n0F1\n"), Contains("line 2, token 1 '0F1'") && Contains("stage 0 is on rank 0 (line 1)") &&
                                    Contains("nearest legal stage here: 1"));
  CHECK_THAT(why("0F0 2F0\n1F0\n"), Contains("stages 0 to 2") && Contains("4"));
  CHECK_THAT(why("# nothing\n"), Contains("no actions"));
}
