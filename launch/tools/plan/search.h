// Layouts of a config on a number of devices, ordered by predicted step time.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "launch/config/config.h"
#include "launch/tools/plan/memory_model.h"
#include "launch/tools/plan/step_model.h"

namespace gt {

// Returns the workload of a checked config, for closed forms.
Workload workload_of(const Config&);

// Returns the bytes of optimizer moments per trained parameter of a checked config, master weights apart.
double moment_bytes(const Config&);

struct Candidate {
  Config config;  // checked
  StepTerms terms;
  double memory = 0;  // bytes of the fullest device by closed forms
};

struct SearchSpace {
  int64_t devices = 1;
  std::vector<std::pair<std::string, std::string>> keep;  // keys whose values are fixed: {"parallel.tp", "8"}
};

// Order of layouts by seconds of a step, rounded as tables print them; of equal ones, by memory.
bool layout_before(double seconds_a, double memory_a, double seconds_b, double memory_b);

// Returns the `most` fastest legal layouts of `base` on the devices, fastest first, that fit `capacity` bytes per
// device by closed forms. Varies tp, pp, vpp, dp, micro_batch, recompute and ZeRO stage; the global batch is fixed.
// Ordered by layout_before(). Empty: none fits.
std::vector<Candidate> search_layouts(const Config& base, const SearchSpace&, const MachineModel&, double capacity,
                                      size_t most);

}  // namespace gt
