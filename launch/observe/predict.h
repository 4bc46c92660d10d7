// Predicts the pipeline of a run: simulates the schedule with the FLOPs of the partitioned stages. Relative times only,
// independent of machine speed.
#pragma once
#include "launch/engine/engine.h"
#include "parallel/pipeline/simulate.h"

namespace gt {

constexpr double kMuchBubble = 0.3;  // threshold of the bubble warning

// Times per virtual stage and microbatch in units of an average stage's forward: a backward takes two forwards, or
// three with full recomputation. I and W each take half of a backward. Messages are free.
Cost stage_cost(const EngineOptions&, int pp);

// Forward FLOPs of `tokens` tokens by virtual stage.
std::vector<double> stage_flops(const EngineOptions&, int pp, int64_t tokens);

// Simulates the training schedule with stage_cost.
Report predict_pipeline(const EngineOptions&, int pp);

}  // namespace gt
