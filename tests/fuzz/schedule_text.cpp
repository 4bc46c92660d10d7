#include "parallel/pipeline/check_schedule.h"
#include "parallel/pipeline/pipeline_schedule.h"
#include "parallel/pipeline/simulate.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {
namespace {

void run(std::string_view input) {
  PipelineSchedule s;
  if (refused([&] { s = parse_schedule(std::string(input)); })) return;
  GT_CHECK(parse_schedule(to_string(s)).program == s.program, "a schedule that was accepted is written and read again");
  for (const bool tied : {false, true}) {
    PipelineSchedule whole = s;
    if (refused([&] {
          complete_schedule(whole, tied);
          simulate(whole);
        }))
      continue;
    GT_CHECK(!gantt(simulate(whole)).empty());
  }
}

std::vector<std::string> seeds() {
  return {to_string(make_schedule("1f1b", 2, 1, 3)),
          to_string(make_schedule("zb-h1", 3, 1, 4, true)),
          to_string(make_schedule("interleaved", 2, 2, 4)),
          to_string(forward_only(2, 1, 3)),
          "# comment\n0F0 0B0 0G\n",
          "0F0 0F32766\n",
          "32766F0\n",
          "32766F32766 0B0\n"};
}

}  // namespace

Target schedule_text() {
  return {
      "schedule_text",
      run,
      seeds,
      {"0F0 ", "1F<0 ", "0F>1 ", "0B<0 ", "1B>0 ", "0I0 ", "0W0 ", "0G", "1T", "\n", "#", "32767", "-1", "99999999999"},
      10000};
}

}  // namespace gt::fuzz
