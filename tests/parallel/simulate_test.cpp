// The simulator against closed forms, and its errors for schedules that would hang, leak or mismatch messages.
#include "parallel/pipeline/simulate.h"

#include <algorithm>

#include "kernels/core/check.h"
#include "parallel/pipeline/buffer_plan.h"
#include "tests/parallel/closed_forms.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

std::string why(const PipelineSchedule& s) {
  try {
    simulate(s);
  } catch (const Error& e) {
    CHECK(e.code() == Exit::kUsage);
    return e.what();
  }
  return "accepted";
}
std::string why(const std::string& text) { return why(parse_schedule(text)); }

}  // namespace

TEST_CASE("every schedule up to 8 ranks, 16 microbatches and 4 chunks is accepted and has the closed-form peaks") {
  for (const NamedSchedule c : kNamedSchedules)
    for (int p = 1; p <= 8; ++p)
      for (int m = 1; m <= 16; ++m) {
        CAPTURE(c.name, c.v, p, m);
        const PipelineSchedule s = make_schedule(c.name, p, c.v, m, true);
        const Report report = simulate(s);
        bool peaks = true, slots = true;
        for (int r = 0; r < p; ++r) {
          peaks = peaks && report.peak_in_flight[static_cast<size_t>(r)] == most_in_flight(c.name, p, c.v, m, r);
          slots = slots && plan_buffers(s, r).slots == report.peak_in_flight[static_cast<size_t>(r)];
        }
        CHECK(peaks);
        CHECK(slots);
      }
}

TEST_CASE("bubbles follow the formulas for any number of microbatches that fills the pipeline") {
  for (int p = 1; p <= 8; ++p)
    for (int m = p; m <= 16; ++m) {
      CAPTURE(p, m);
      const double work = 3.0 * m;
      CHECK(simulate(make_schedule("gpipe", p, 1, m)).makespan == work + 3 * (p - 1));
      CHECK(simulate(make_schedule("1f1b", p, 1, m)).makespan == work + 3 * (p - 1));
      CHECK(simulate(make_schedule("1f1b", p, 1, m)).bubble == Approx((p - 1.0) / (m + p - 1)).margin(1e-12));
      CHECK(simulate(make_schedule("zb-h1", p, 1, m)).makespan == work + (p - 1));  // F + I - W = 1
      for (int v = 2; v <= 4; ++v) {
        const Cost chunk{.f = 1.0 / v, .b = 2.0 / v};
        CHECK(simulate(make_schedule("interleaved", p, v, m), chunk).makespan == Approx(work + 3.0 * (p - 1) / v));
      }
    }
}

TEST_CASE("four ranks and sixteen microbatches give the specified bubbles and peaks") {
  const auto bubble = [](const char* name, int v) {
    return simulate(make_schedule(name, 4, v, 16), {.f = 1.0 / v, .b = 2.0 / v}).makespan - 48;
  };
  CHECK(bubble("gpipe", 1) == 9);
  CHECK(bubble("1f1b", 1) == 9);
  CHECK(bubble("interleaved", 2) == 4.5);
  CHECK(bubble("zb-h1", 1) == 3);
  CHECK(simulate(make_schedule("1f1b", 4, 1, 16)).peak_in_flight == std::vector<int>{4, 3, 2, 1});
  CHECK(simulate(make_schedule("interleaved", 4, 2, 16)).peak_in_flight == std::vector<int>{11, 9, 7, 5});
  CHECK(simulate(make_schedule("gpipe", 4, 1, 16)).peak_in_flight == std::vector<int>{16, 16, 16, 16});
  CHECK(simulate(make_schedule("zb-h1", 4, 1, 16)).peak_in_flight == std::vector<int>{4, 4, 4, 4});
}

TEST_CASE("the closed form of 1F1B's microbatches in flight is the simulated peak") {
  for (int p = 1; p <= 5; ++p)
    for (int m = 1; m <= 9; ++m)
      for (const int extra : {0, 1, 4, 1024})
        for (int r = 0; r < p; ++r)
          CHECK(in_flight_1f1b(p, r, m, extra) ==
                simulate(make_schedule("1f1b", p, 1, m, false, extra)).peak_in_flight[static_cast<size_t>(r)]);
}

TEST_CASE("evaluation takes m + p - 1 ticks and two slots") {
  for (int p = 1; p <= 6; ++p)
    for (int m = 1; m <= 9; ++m) {
      const PipelineSchedule s = make_schedule("forward", p, 1, m);
      CHECK(simulate(s).makespan == m + p - 1);
      for (int r = 0; r < p; ++r) CHECK(plan_buffers(s, r).slots == 2);
    }
  for (int v = 1; v <= 4; ++v)
    for (int p = 1; p <= 4; ++p) CHECK_NOTHROW(simulate(make_schedule("forward", p, v, 7)));
}

TEST_CASE("times per stage and of messages are included") {
  // Two ranks, one microbatch: 2 + 1 + 3 + 6 + 1 + 4.
  const Cost c{.p2p = 1, .stage_f = {2, 3}, .stage_b = {4, 6}};
  CHECK(simulate(make_schedule("1f1b", 2, 1, 1), c).makespan == 17);
  // I and W take half of the stage's backward each: the first rank's W delays no other action.
  CHECK(simulate(make_schedule("zb-h1", 2, 1, 1), c).makespan == 2 + 1 + 3 + 3 + 1 + 2 + 2);
  CHECK_THROWS_WITH(simulate(make_schedule("1f1b", 2, 1, 1), Cost{.stage_f = {1}}),
                    Contains("1 forward times for 2 stages"));
}

TEST_CASE("1f1b with extra microbatches in flight is accepted up to all of them, and holds as many") {
  for (int p = 1; p <= 5; ++p)
    for (int m = 1; m <= 12; ++m)
      for (int extra = 0; extra <= 4; ++extra) {
        CAPTURE(p, m, extra);
        const PipelineSchedule s = make_schedule("1f1b", p, 1, m, true, extra);
        const Report r = simulate(s);
        bool peaks = true;
        for (int k = 0; k < p; ++k) {
          const int peak = std::min((p - 1 - k) * (1 + extra) + 1, m);
          peaks = peaks && r.peak_in_flight[static_cast<size_t>(k)] == peak && plan_buffers(s, k).slots == peak;
        }
        CHECK(peaks);
        CHECK(r.makespan == 3.0 * m + 3 * (p - 1));  // free messages: no faster, no slower
      }
  CHECK_THROWS_WITH(make_schedule("zb-h1", 2, 1, 4, false, 1), Contains("fixed number of microbatches in flight"));
}

TEST_CASE("extra microbatches in flight hide latency, and messages share their line") {
  const Cost line{.f = 1, .b = 2, .p2p = 20};
  const auto makespan = [&](int extra) {
    return simulate(make_schedule("1f1b", 2, 1, 8, false, extra), line).makespan;
  };
  // The first gradient returns after 44. Each round trip moves two microbatches, the second a forward and a
  // backward behind the first.
  CHECK(makespan(0) == (1 + 20 + 3 + 20) + 3 * (40 + 2 * 3) + 3 + 2);
  CHECK(makespan(6) == 1 + 20 + 8 * 3 + 20 + 2);  // all at once: fill, last stage, drain
  CHECK(makespan(7) == makespan(6));
  // A line that takes longer for an activation than the stages for its passes: eight of them in turn, one way.
  const Cost narrow{.f = 1, .b = 2, .p2p = 20, .wire = 10};
  CHECK(simulate(make_schedule("1f1b", 2, 1, 8, false, 7), narrow).makespan == 1 + 8 * 10 + 20 + 3 + 10 + 20 + 2);
  // The tied gradient follows the last message of the last stage and is awaited on the first.
  const Cost tied{.f = 1, .b = 2, .p2p = 20, .tied = 30};
  CHECK(simulate(make_schedule("1f1b", 2, 1, 8, true, 6), tied).makespan == 1 + 20 + 8 * 3 + 30 + 20);
  CHECK(simulate(make_schedule("1f1b", 2, 1, 8, false, 6), tied).makespan == makespan(6));
}

TEST_CASE("the timeline is drawn as specified") {
  CHECK(gantt(simulate(make_schedule("1f1b", 2, 1, 3))) ==
        "r0 01..aa2bb.cc   25.0 %\n"
        "r1 .0aa1bb2cc..   25.0 %     makespan 12   bubble 0.250 = (p-1)/(m+p-1)\n");
  // Weight-only passes are capitals; the closed form is printed for no other schedule.
  CHECK(gantt(simulate(make_schedule("zb-h1", 2, 1, 3))) ==
        "r0 01.aA2bBcC   10.0 %\n"
        "r1 .0a1bA2cBC   10.0 %     makespan 10   bubble 0.100\n");
  const std::string narrow = gantt(simulate(make_schedule("1f1b", 4, 1, 64)), 40);
  CHECK(narrow.find('\n') == 3 + 40 + std::string("    4.5 %").size());
}

TEST_CASE("actions out of order are refused with rank and token") {
  CHECK_THAT(why("0B0 0F0 0G\n"), Contains("rank 0") && Contains(">>0B0<<") && Contains("before its forward"));
  CHECK_THAT(why("0F0 0W0 0I0 0G\n"), Contains(">>0W0<<") && Contains("before its input gradient"));
  CHECK_THAT(why("0F0 0F0 0B0 0G\n"), Contains("0F0 >>0F0<< 0B0") && Contains("twice"));
  CHECK_THAT(why("0F0 0B0 0I0 0W0 0G\n"), Contains(">>0I0<<") && Contains("second backward"));
  CHECK_THAT(why("0F0 0F1 0B1 0B0 0G\n"), Contains(">>0B0<<") && Contains("ascending"));
  CHECK_THAT(why("0F0 0F1 0I0 0I1 0W1 0W0 0G\n"), Contains(">>0W0<<") && Contains("ascending"));
  CHECK_THAT(why("0F0 0F>0 0B<0 0B0 0G\n1F0 1F<0 1B0 1B>0 1G\n"),
             Contains("rank 1") && Contains(">>1F0<<") && Contains("before its receive"));
  CHECK_THAT(why("0F>0 0F0 0B<0 0B0 0G\n1F<0 1F0 1B0 1B>0 1G\n"), Contains("rank 0") && Contains(">>0F>0<<"));
  CHECK_THAT(why("0F0 0B0 0G\n1F0 1B0 1G\n"), Contains(">>0B0<<") && Contains("before its receive"));
  CHECK_THAT(why("0F0 0F>0 0B0 0G\n"), Contains(">>0F>0<<") && Contains("no neighbour on that side"));
  CHECK_THAT(why("0F0 1F0 0B0 1B0 0G 1G\n"), Contains(">>0B0<<") && Contains("before stage 1"));
  PipelineSchedule elsewhere = make_schedule("1f1b", 2, 1, 1);
  std::swap(elsewhere.program[0], elsewhere.program[1]);
  CHECK_THAT(why(elsewhere), Contains("stage 1 is on rank 1"));
}

TEST_CASE("leaks and lost gradients are refused") {
  CHECK_THAT(why("0F0 0F1 0B0 0G\n"), Contains(">>0G<<") && Contains("before the last weight gradient"));
  CHECK_THAT(why("0F0 0F1 0B0\n"), Contains("rank 0") && Contains("no 0B1") && Contains("leak"));
  CHECK_THAT(why("0F0 0I0\n"), Contains("no 0W0") && Contains("leak"));
  CHECK_THAT(why("0F0 0B0\n"), Contains("no 0G"));
  CHECK_THAT(why("0F1 0B1 0G\n"), Contains("no 0F0"));
  CHECK_THAT(why("0F0 0B0 0G 0G\n"), Contains("0G >>0G<<") && Contains("twice"));
  CHECK_THAT(why("0F0 0B0 0T 0G\n"), Contains(">>0T<<") && Contains("before G"));
  CHECK_THAT(why("0F0 0G\n"), Contains(">>0G<<") && Contains("without backward"));
  CHECK_THAT(why("0F0 0F>0 0B<0 0B0 0G 0T\n1F<0 1F0 1B0 1B>0 1G\n"), Contains("one end only"));
}

TEST_CASE("messages that do not match are refused, naming both sides") {
  PipelineSchedule lost = make_schedule("1f1b", 2, 1, 2);
  Program& sender = lost.program[0];
  sender.erase(std::find(sender.begin(), sender.end(), Action{Act::kSendForward, 0, 1}));
  CHECK_THAT(why(lost), Contains("rank 1") && Contains(">>1F<1<<") && Contains("no send for it on rank 0"));

  PipelineSchedule unheard = make_schedule("gpipe", 2, 1, 2);
  std::erase_if(unheard.program[0], [](Action a) { return a.act == Act::kRecvBackward && a.microbatch == 1; });
  CHECK_THAT(why(unheard), Contains("before its receive"));

  PipelineSchedule reordered =
      make_schedule("gpipe", 2, 1, 2);  // both activations sent after both forwards, the second one first
  reordered.program[0] = parse_schedule("0F0 0F1 0F>1 0F>0 0B<0 0B0 0B<1 0B1 0G\n1F0 1F1\n").program[0];
  CHECK_THAT(why(reordered), Contains("rank 1") && Contains(">>1F<0<<") && Contains("0F>1") && Contains("reordered"));
}

TEST_CASE("a schedule that needs buffered sends is refused with every rank's position") {
  // Rank 0 sends its second activation while rank 1 sends its first gradient: valid with buffers, a hang without.
  const char* text =
      "0F0 0F>0 0F1 0F>1 0B<0 0B0 0B<1 0B1 0G\n"
      "1F<0 1F0 1B0 1B>0 1F<1 1F1 1B1 1B>1 1G\n";
  CHECK_THAT(why(text), Contains("deadlock with rendezvous sends") && Contains("rank 0 waits at") &&
                            Contains(">>0F>1<<") && Contains("rank 1 waits at") && Contains(">>1B>0<<"));
}

TEST_CASE("a schedule that deadlocks with any sends is refused") {
  // Each rank waits for the other's first message: rank 0 forwards chunk 2 before it sends rank 1 the input it needs.
  const char* text =
      "0F0 2F<0 2F0 0F>0 2F>0 2B<0 2B0 2B>0 2G 0B<0 0B0 0G\n"
      "1F<0 1F0 1F>0 3F<0 3F0 3B0 3B>0 3G 1B<0 1B0 1B>0 1G\n";
  CHECK_THAT(why(text), Contains("deadlock") && Contains(">>2F<0<<") && Contains(">>1F<0<<"));
}

TEST_CASE("a smaller last group of the interleaved walk would deadlock, ours does not") {
  CHECK_NOTHROW(simulate(make_schedule("interleaved", 4, 3, 5)));
  CHECK_NOTHROW(simulate(make_schedule("interleaved", 4, 3, 4)));
}

TEST_CASE("contradicting shapes of a schedule are refused") {
  PipelineSchedule s = make_schedule("gpipe", 2, 1, 1);
  s.stages = 3;
  CHECK_THAT(why(s), Contains("3 stages"));
  s = make_schedule("gpipe", 2, 1, 1);
  s.microbatches = 2;
  CHECK_THAT(why(s), Contains("before the last weight gradient") || Contains("no 0F1"));
}

TEST_CASE("ranks that share cores lose the time in which fewer of them can compute") {
  const auto on = [](const char* name, int p, int m, int pipelines, int cores) {
    return makespan_on_cores(make_schedule(name, p, 1, m), {}, pipelines, cores);
  };
  for (const char* name : {"gpipe", "1f1b"})
    for (int p = 1; p <= 6; ++p)
      for (int m = 1; m <= 8; ++m) {
        CAPTURE(name, p, m);
        const double alone = simulate(make_schedule(name, p, 1, m)).makespan, work = 3.0 * p * m;
        CHECK(on(name, p, m, 1, p) == alone);  // a core each
        CHECK(on(name, p, m, 1, 1) == work);   // some rank can always compute
        CHECK(on(name, p, m, 3, 1) == 3 * work);
        const double two = on(name, p, m, 1, 2);
        CHECK((two >= std::max(alone, work / 2) && two <= work));
      }
  CHECK(on("gpipe", 4, 1, 1, 2) == 12);  // one microbatch: one rank at a time
  CHECK(on("gpipe", 4, 1, 2, 2) == 12);  // two pipelines: a core each
}
