// Plays a schedule offline: checks it and predicts makespan, bubble and memory. Nothing runs before this has accepted
// it.
#pragma once
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace gt {

// Times of one stage and microbatch in any unit; per virtual stage when the vectors are given.
struct Cost {
  double f = 1, b = 2, i = 1, w = 1, p2p = 0;
  std::vector<double> stage_f, stage_b;  // empty, or one entry per virtual stage; I and W take half of stage_b each
};

struct Span { Action action; double begin, end; };  // one executed compute action

struct Report {
  double makespan = 0;
  double bubble = 0;                        // 1 - busy / (makespan * ranks)
  std::vector<int> peak_in_flight;          // per rank: most microbatch slots (forward done, backward or W not) at once
  std::vector<std::vector<Span>> timeline;  // per rank
  std::vector<std::vector<Span>> waiting;   // per rank, of executed steps: blocked on a message; empty when simulated
};

// Throws gt::Error on disorder, unmatched or reordered messages (also with rendezvous sends), deadlock, leaked
// activations.
Report simulate(const Schedule&, const Cost& = {});

// ASCII timeline: one row a rank, digit = forward of microbatch k mod 10, letter = backward, capital = weight only,
// '~' = waiting for a message (executed steps), '.' idle.
std::string gantt(const Report&, int width = 100);

}  // namespace gt
