// What the pipeline of a run will look like before it runs: the simulator fed with the FLOPs of the stages that the
// partition made. Relative times only: nothing here knows how fast a machine is.
#pragma once
#include "launch/engine/engine.h"
#include "parallel/pipeline/simulate.h"

namespace gt {

constexpr double kMuchBubble = 0.3;  // above it a layout is warned about

// Times per virtual stage and microbatch in units of one average stage's forward: a backward is two forwards, and a
// third where blocks are recomputed whole. I and W share a backward's time evenly. Messages cost nothing.
Cost stage_cost(const EngineOptions&, int pp);

// Forward FLOPs of `tokens` tokens by virtual stage.
std::vector<double> stage_flops(const EngineOptions&, int pp, int64_t tokens);

// The training schedule, played with stage_cost.
Report predict_pipeline(const EngineOptions&, int pp);

}  // namespace gt
