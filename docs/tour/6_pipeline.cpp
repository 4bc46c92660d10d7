// 6. Pipeline parallelism.
//
// A schedule is data: for every rank the list of its actions. A generator emits forwards and backwards, passes add
// messages and reductions, a simulator finds deadlocks and the bubble before anything runs, and the executor is one
// switch over actions. A schedule from a text file takes the same way (--schedule file:PATH).
#include "docs/tour/show.h"
#include "parallel/pipeline/simulate.h"

using namespace gt;

int main() {
  constexpr int kStages = 4, kMicrobatches = 8;
  for (const char* name : {"gpipe", "1f1b", "zb-h1"}) {
    const PipelineSchedule s = make_schedule(name, kStages, 1, kMicrobatches);
    const Report r = simulate(s, {.f = 1, .b = 2, .i = 1, .w = 1});
    std::printf("%s: bubble %.1f %%, microbatches in flight on the first rank: %d\n%s\n", name, 100 * r.bubble,
                r.peak_in_flight[0], gantt(r, 66).c_str());
    if (s.name == "1f1b") {
      tour::claim(std::abs(r.bubble - 3.0 / 11) < 1e-9, "1F1B idles (p - 1) / (m + p - 1) of a step");
      tour::claim(r.peak_in_flight[0] == kStages, "and holds the activations of p microbatches, GPipe those of all m");
    }
  }
  const double one = simulate(make_schedule("1f1b", 4, 1, 8)).bubble,
               two = simulate(make_schedule("interleaved", 4, 2, 8)).bubble;
  std::printf("interleaved, 2 chunks a rank: bubble %.1f %% instead of %.1f %%\n", 100 * two, 100 * one);
  tour::claim(two < one, "chunks shorten the ramps");

  // The text form. A rank that receives before its peer sends would wait for ever: the simulator reports it.
  const PipelineSchedule small = make_schedule("1f1b", 2, 1, 2);
  std::printf("\n%s\n", to_string(small).c_str());
  tour::claim(parse_schedule(to_string(small)).program == small.program, "the text form loses nothing");
  PipelineSchedule wrong = small;
  std::swap(wrong.program[0].front(), wrong.program[0].back());
  std::string refusal;
  try {
    simulate(wrong);
  } catch (const Error& e) { refusal = e.what(); }
  std::printf("refused: %s\n", refusal.c_str());
  tour::claim(!refusal.empty(), "a wrong order is refused before a rank starts");
}
