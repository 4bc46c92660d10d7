// Closed-form time of one training step; evaluates in microseconds for thousands of ranks. Maps a workload and the
// constants of a machine to the terms of a step. Predicts published runs and ranks the layouts of a search.
// Sources: Narayanan et al. 2021 (arXiv 2104.04473) for the pipeline and its messages, Korthikanti et al. 2022
// (arXiv 2205.05198) for recomputation, Rajbhandari et al. 2020 (arXiv 1910.02054) for ZeRO's volumes. Muon gathers and
// updates as optim/whole_matrices.h and optim/muon.cpp do.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "launch/tools/plan/workload.h"

namespace gt {

// Constants of a machine and the software on it. Rates in FLOP/s and bytes/s, latencies in seconds.
struct MachineModel {
  double peak = 312e12;               // dense FLOP/s of the compute dtype, from the data sheet
  int64_t per_node = 8;               // devices that `link` connects
  double gemm_efficiency = 0.75;      // fraction of the peak that large GEMMs reach
  double gemm_half = 150;             // extent at which a GEMM reaches half of that
  double attention_efficiency = 0.4;  // fraction of the peak
  double elementwise = 60;            // bytes per token and channel of a block's memory-bound ops
  double logits = 12;                 // bytes per logit of the loss, forward and backward
  double memory = 1.5e12;             // device memory
  double link = 200e9;                // bus bandwidth of a collective inside a node
  double nic = 160e9;                 // all network ports of a node together
  double nic_tp = 0.7, nic_dp = 0.8;  // fractions of nic that TP and DP collectives reach
  double tp_latency = 1e-5;           // per TP collective: its launch and the wait for the slowest rank
  double tp_exposed = 1;              // exposed fraction of TP collectives' transfers
  double p2p_exposed = 0.5;           // exposed fraction of pipeline messages
  double hidden = 0.7;                // fraction of overlapped communication that is hidden
  double block_latency = 6e-5;        // per pass through a block
  double host = 1e-4;                 // host time per forward pass of a block; a backward pass takes twice as long
  double host_tp = 0.07;              // fraction by which it grows with each doubling of tp
  double step_latency = 5e-3;         // per step
  double accumulation = 0;            // bytes per parameter and microbatch to add gradients outside the GEMMs
  double misaligned = 12;             // slow-down of attention whose head dimension is not a multiple of 8
  double hop = 2e-6;                  // per hop of a ring
  std::map<BlockShape, double> measured_blocks = {};  // measured time / that of the constants above
};

// Constant that calibration may change: its name in profiles, and the expected deviation of ln(value).
struct MachineConstant {
  const char* name;
  double MachineModel::*value;
  double sigma;
};
const std::vector<MachineConstant>& machine_constants();

// Seconds of one step of the slowest pipeline rank.
struct StepTerms {
  double linear = 0, attention = 0, elementwise = 0, recompute = 0;  // of all microbatches
  double tensor_parallel = 0, latency = 0, p2p = 0, head = 0;        // latency: launches, and waiting for the host
  double bubble = 0;
  double data_parallel = 0;         // exposed gradient reductions and weight gathers
  double optimizer = 0, fixed = 0;  // optimizer: with additions to gradients outside the GEMMs

  double blocks() const { return linear + attention + elementwise + recompute + tensor_parallel + latency + bubble; }
  double pipeline() const { return blocks() + p2p + head; }
  double total() const { return pipeline() + data_parallel + optimizer + fixed; }
  // Name and seconds of every term, in this order.
  std::vector<std::pair<const char*, double>> list() const;
};

// Changes the software constants to those of PyTorch programs that launch op by op. `fused`: kernels of 2023 and later,
// which fuse memory-bound ops and add weight gradients inside their GEMMs.
void set_eager(MachineModel&, bool fused);

// Requires: sizes of at least 1, and a global batch that micro_batch x dp divides.
StepTerms step_terms(const Workload&, const MachineModel&);

}  // namespace gt
