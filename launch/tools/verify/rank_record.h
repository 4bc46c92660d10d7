// Recorded results of one rank of a verification run. Values are copied to the host, so a record outlives its rank and
// can be sent between processes.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "launch/engine/logical.h"
#include "launch/tools/verify/activations.h"
#include "parallel/comm/process_group.h"
#include "parallel/zero/shard_view.h"

namespace gt {

// Values of a shard view after one step.
constexpr int kInitial = -1;  // before the first step
struct RecordedTensor {
  int step = 0;
  ShardView view;  // data is empty
  DType dtype = DType::kF32;
  std::vector<float> values;
};

struct RankRecord {
  std::vector<double> losses, norms;
  std::vector<double> parts;  // StepResult::parts of all steps
  double eval_loss = 0;
  std::vector<double> eval_hits;
  std::vector<RecordedTensor> pieces;
  Activations activations;
  std::vector<std::string> module_order;
  std::string wrong_call;  // first call in a group that is not the derived one, of step wrong_step
  int wrong_step = 0;
  int64_t derived_calls = 0;
};

// Copies the values of the views into the record. `copies`: also views that another rank saves.
void record_views(RankRecord&, int step, const std::vector<ShardView>& views, bool copies, const Backend&, Stream);

// Gathers the records of all ranks on rank 0, in rank order; returns nothing on other ranks. Collective.
std::vector<RankRecord> gather_records(ProcessGroup& world, const RankRecord& mine);

}  // namespace gt
