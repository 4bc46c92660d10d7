// How a step is divided into pipeline stages, in which order they run, and what their backwards recompute: every option
// of a layout besides the sizes of the mesh and ZeRO. The engine and its dry run (EngineOptions), the closed forms
// (Workload) and the config (section `parallel`) hold this one description.
#pragma once
#include <cstdint>
#include <string>

#include "model/recompute.h"

namespace gt {

struct LayoutOptions {
  std::string schedule = "1f1b";  // gpipe | 1f1b | interleaved | zb-h1 | file:PATH
  std::string partition = "flops";
  int vpp = 1;              // model chunks per pipeline rank; above 1: interleaved schedule or a file, and pp > 1
  int extra_in_flight = 0;  // of schedule 1f1b: one_f_one_b()
  Recompute recompute = Recompute::kNone;
  int64_t recompute_layers = 0;  // recompute only the first blocks of each stage; 0: all
  bool dynamic_shapes = false;   // microbatches of a run may differ in shape: headers before boundary messages

  // Resets options that have no effect under this schedule on `pp` ranks, so that equal layouts have equal options.
  void settle(int64_t pp) {
    if (pp == 1 || schedule != "1f1b") extra_in_flight = 0;
  }
  friend bool operator==(const LayoutOptions&, const LayoutOptions&) = default;

  template <class V>
  void fields(V& v) {
    v("vpp", vpp, "1..64 chunks", "model chunks per pipeline rank; more than 1 needs schedule interleaved or a file");
    v("schedule", schedule, "1f1b|gpipe|interleaved|zb-h1|FILE", "pipeline schedule, or file:PATH of a schedule file");
    v("extra_in_flight", extra_in_flight, "0..1024 microbatches",
      "schedule 1f1b: microbatches in flight per stage boundary beyond the one of plain 1F1B; hides the latency of "
      "slow links, costs their activations, same results");
    v("partition", partition, "flops|uniform|parameters|RULE",
      "division of layers into pp x vpp stages: balance FLOPs, layer counts, parameters, or layers that match "
      "type:REGEX; or blocks per stage as in 4,4");
    v("recompute", recompute, "",
      "activation recomputation: none, selective (outputs of norms and GELUs), full (whole blocks)");
    v("recompute_layers", recompute_layers, "0..65536 blocks", "recompute the first N blocks of each stage; 0: all");
    v("dynamic_shapes", dynamic_shapes, "",
      "send a 48-byte shape header before each tensor between stages, so that microbatches may differ in shape; those "
      "of the data loader never do");
  }
};

}  // namespace gt
