// Tables of published or measured steps (CSV with a header): model, hardware and step time. They calibrate and validate
// the planner.
#pragma once
#include <string>
#include <vector>

#include "launch/tools/plan/step_model.h"

namespace gt {

struct PlanRow {
  std::string id, source;
  std::string profile;   // rows that share constants: a machine and its software
  std::string group;     // rows of equal model and devices: their layouts are compared
  MachineModel machine;  // constants before calibration
  Workload work;
  double seconds = 0;            // printed step time; 0: not published
  bool graded = true;            // false: contradicted by its source
  double memory = 0;             // bytes per device reported by the source; 0: not published
  double capacity = 0;           // bytes of the device
  int fits = -1;                 // 1, 0: out of memory; -1: not published
  std::vector<std::string> use;  // "time", "mem", "fit", "flops", "order": tests that use the row; empty: time
  bool serves(const std::string& what) const;
};

// Reads columns by name; missing ones have defaults (an A100 of 80 GB, nodes of 8, Megatron-LM's unfused attention, 4 x
// hidden). Mandatory: layers, hidden, heads, seq, tp, pp, dp, gbs, mbs and iter_s or iter_ms. Without `recompute`, full
// recomputation is assumed for a model of which any row of the table would not fit otherwise: its runs share a script.
// `lora` 1: the weights are frozen. Rows without both time and model sizes are skipped. Throws kUsage naming file and
// line.
std::vector<PlanRow> read_plan_rows(const std::string& path);

// Returns predicted / printed - 1.
double row_error(const PlanRow&, const MachineModel&);

}  // namespace gt
