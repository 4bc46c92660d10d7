// Tables of published or measured steps (CSV with a header): what was trained, on what, how long a step took. The
// planner is held against them and calibrated by them.
#pragma once
#include <string>
#include <vector>

#include "launch/plan/step_model.h"

namespace gt {

struct PlanRow {
  std::string id, source;
  std::string profile;   // rows with one set of constants: a machine and the software on it
  std::string group;     // rows of equal model and devices: their layouts compete
  MachineModel machine;  // constants before calibration
  Workload work;
  double seconds = 0;            // of a step as printed; 0: not published
  bool graded = true;            // false: its source contradicts it
  double memory = 0;             // bytes of a device that the source reports; 0: not published
  double capacity = 0;           // bytes of the device
  int fits = -1;                 // 1, 0: out of memory; -1: not published
  std::vector<std::string> use;  // "time", "mem", "fit", "flops", "order": tests that it serves; empty: time
  bool serves(const std::string& what) const;
};

// Columns by their names; those that are missing have defaults (an A100 of 80 GB, nodes of 8, Megatron-LM's unfused
// attention, 4 x hidden). Needed: layers, hidden, heads, seq, tp, pp, dp, gbs, mbs and iter_s or iter_ms. Without
// `recompute` blocks are taken to be recomputed where they would not fit comfortably otherwise. Rows without a time and
// without model sizes are skipped. kUsage names file and line.
std::vector<PlanRow> read_plan_rows(const std::string& path);

// predicted / printed - 1.
double row_error(const PlanRow&, const MachineModel&);

}  // namespace gt
