// What one rank of a verified run has to show, and the run put together from all ranks' records. Values are copied to
// the host, so a record outlives its rank and can travel between processes.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "launch/engine/logical.h"
#include "launch/verify/activations.h"
#include "parallel/comm/process_group.h"
#include "parallel/zero/shard_view.h"

namespace gt {

// A view and the values it showed in one step.
constexpr int kBefore = -1;  // the first step
struct HeldTensor {
  int step = 0;
  ShardView view;  // data is empty
  std::vector<float> values;
};

struct RankRecord {
  std::vector<double> losses, norms;
  double eval_loss = 0;
  std::vector<HeldTensor> pieces;
  Activations activations;
  std::vector<std::string> module_order;
};

// Copies what the views show into the record. Without `copies` only what this rank is the one to save.
void add_pieces(RankRecord&, int step, const std::vector<ShardView>& views, bool copies, const Backend&, Stream);

// Records of all ranks, in rank order, on rank 0; nothing elsewhere. Collective.
std::vector<RankRecord> gather_records(ProcessGroup& world, const RankRecord& mine);

}  // namespace gt
