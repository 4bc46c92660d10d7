// Simulates a schedule offline: validates it and predicts makespan, bubble and memory. No schedule runs before this has
// accepted it.
#pragma once
#include <vector>

#include "parallel/pipeline/pipeline_schedule.h"

namespace gt {

// Durations of one stage and microbatch, in any unit; per virtual stage if the vectors are given. A message occupies
// the line from its rank to the other for `wire` and arrives p2p after it has left. `tied`: how long the gradient of
// tied embeddings occupies it, which first and last stage send each other at T.
struct Cost {
  double f = 1, b = 2, i = 1, w = 1, p2p = 0, wire = 0, tied = 0;
  std::vector<double> stage_f, stage_b;  // empty, or one entry per virtual stage; I and W take half of stage_b each
};

struct Span {
  Action action;
  double begin, end;
};  // one executed compute action

struct Report {
  double makespan = 0;              // until the tied gradients are complete on the first stage, which the norm needs
  double bubble = 0;                // 1 - busy / (makespan * ranks)
  std::vector<int> peak_in_flight;  // per rank: peak of microbatch slots in use (forward done, backward or W
                                    // not)
  std::vector<std::vector<Span>> timeline;  // per rank
  std::vector<std::vector<Span>> waiting;   // per rank, measured steps: blocked on a message; empty when simulated
};

// Throws gt::Error on actions out of order, unmatched or reordered messages (also with rendezvous sends), deadlock,
// leaked activations.
Report simulate(const PipelineSchedule&, const Cost& = {});

// Makespan of `pipelines` equal pipelines whose ranks share `cores` processors: whoever has waited longest for one gets
// the first that is free. Requires: the schedule is one that simulate() accepts.
double makespan_on_cores(const PipelineSchedule&, const Cost&, int pipelines, int cores);

// ASCII timeline: one row per rank. Digit = forward of microbatch k mod 10, letter = backward, capital = weight
// gradient only. '~' = waiting for a message (measured steps), '.' = idle.
std::string gantt(const Report&, int width = 100);

}  // namespace gt
