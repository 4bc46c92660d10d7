// Gathers LAMB's trust ratios of all tensors for the logs. Names are exchanged once, values on request.
#pragma once
#include <string>
#include <vector>

#include "optim/optimizer.h"
#include "parallel/comm/process_group.h"

namespace gt {

class TrustRatioLog {
 public:
  // Collective over `world`. `mine`: this rank's tensors; the ratios are ignored.
  TrustRatioLog(const std::vector<TrustRatio>& mine, ProcessGroup& world);
  // Collective. Returns the ratios of all tensors, by name; 0 if never computed.
  std::vector<TrustRatio> gather(const std::vector<TrustRatio>& mine);

 private:
  ProcessGroup& world_;
  std::vector<std::string> names_;  // of the whole model, sorted
};

}  // namespace gt
