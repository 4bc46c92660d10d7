#include "launch/commands/verb_keys.h"

namespace gt {
namespace {

using Keys = std::vector<std::string>;

Keys join(Keys a, const Keys& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Where ranks compute a loaded model, and how they are started and find each other.
const Keys kRanks = {"parallel.tp",       "parallel.pp",          "parallel.dp",       "parallel.partition",
                     "device.kind",       "device.threads",       "device.isa",        "device.gemm_tune",
                     "device.gemm_plans", "device.attention",     "launch.ranks",      "launch.hostfile",
                     "launch.include",    "launch.exclude",       "launch.num_nodes",  "launch.num_slots",
                     "launch.launcher",   "launch.launcher_args", "launch.ssh_port",   "launch.bind_cores",
                     "launch.core_list",  "comm.backend",         "comm.nccl_library", "comm.stall_abort_s"};
// In which precision it computes.
const Keys kPrecision = {"precision.amp", "precision.dtype", "precision.keep_norm_fp32", "precision.tf32"};

}  // namespace

Keys keys_of_verb(const std::string& verb) {
  if (verb == "generate") return join(kRanks, kPrecision);
  if (verb == "eval")
    return join(join(kRanks, kPrecision),
                {"precision.fp8", "precision.fp8_fast_accum", "model.loss_chunk", "parallel.sequence_parallel",
                 "train.micro_batch", "train.global_batch", "data.train", "data.valid", "data.tokenizer", "data.split",
                 "data.eod_mask_loss", "device.graphs"});
  if (verb == "lr") return {"optim.", "schedule.", "train.", "parallel."};
  return {};
}

}  // namespace gt
