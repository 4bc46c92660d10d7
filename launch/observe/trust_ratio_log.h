// LAMB's trust ratios of all tensors on every rank, for the logs: names are exchanged once, numbers when they are asked
// for.
#pragma once
#include <string>
#include <vector>

#include "optim/optimizer.h"
#include "parallel/comm/process_group.h"

namespace gt {

class TrustRatioLog {
 public:
  // Collective over `world`. `mine`: of this rank's tensors, any ratios.
  TrustRatioLog(const std::vector<TrustRatio>& mine, ProcessGroup& world);
  // Collective. The ratios of all tensors, by name; 0 where none was ever computed.
  std::vector<TrustRatio> gather(const std::vector<TrustRatio>& mine);

 private:
  ProcessGroup& world_;
  std::vector<std::string> names_;  // of the whole model, sorted
};

}  // namespace gt
