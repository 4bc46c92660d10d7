// Seconds spent in the ops of each module on this rank. An op is attributed to the module whose parameter it reads or
// whose gradient it writes. An op without a parameter, such as the attention core, is attributed to a leaf of the
// preceding module.
#pragma once
#include <map>
#include <span>
#include <string>

#include "kernels/operands.h"
#include "launch/engine/measure/module_flops.h"
#include "parallel/comm/process_group.h"

namespace gt {

// Name under which an op's work is counted: that of its parameter, and "head.weight" for a GEMM with the embedding's
// table, which a tied head uses. An embedding makes no GEMMs.
const std::string& counted_parameter(const std::string& parameter, OpClass kind);

class ModuleTimer {
 public:
  struct Seconds {
    double forward = 0, backward = 0;
  };
  // Adds the time of an op. `leaf`, `direction`: of the op (kernels/operands.h); `parameter`: the one that it reads or
  // whose gradient it writes, or nullptr.
  void add(Leaf leaf, Direction direction, const std::string* parameter, double seconds);
  const std::map<std::string, Seconds>& modules() const { return modules_; }

  // Collective over the world: fills forward and backward of every leaf with the mean over the ranks that ran it.
  void share(ProcessGroup& world, std::span<ModuleCost> leaves) const;

 private:
  std::map<std::string, Seconds> modules_;
  std::string last_;       // module of the last op with a parameter
  bool backward_ = false;  // for ops without a direction
};

}  // namespace gt
