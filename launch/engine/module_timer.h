// Seconds that the ops of each module took on this rank. An op belongs to the module whose parameter it reads or whose
// gradient it writes; one that has none, such as attention between its projections, to a leaf of the module before it.
#pragma once
#include <map>
#include <span>
#include <string>

#include "kernels/operands.h"
#include "launch/engine/module_flops.h"
#include "parallel/comm/process_group.h"

namespace gt {

class ModuleTimer {
 public:
  struct Seconds {
    double forward = 0, backward = 0;
  };
  // Adds an op's time. `leaf` and `direction`: its own (kernels/operands.h); `parameter`: that it reads or whose
  // gradient it writes, nullptr when there is none.
  void add(Leaf leaf, Direction direction, const std::string* parameter, double seconds);
  const std::map<std::string, Seconds>& modules() const { return modules_; }

  // Collective over the world: fills in forward and backward of every leaf, a mean over the ranks with a share in it.
  void share(ProcessGroup& world, std::span<ModuleCost> leaves) const;

 private:
  std::map<std::string, Seconds> modules_;
  std::string last_;       // module of the last op with a parameter
  bool backward_ = false;  // of ops that do not say it
};

}  // namespace gt
