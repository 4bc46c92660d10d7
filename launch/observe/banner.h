// Start block and plan table: configuration, placement and memory of a run, printed before the first step.
#pragma once
#include <string>
#include <vector>

#include "data/samples/dataset.h"
#include "launch/config/config.h"
#include "launch/observe/memory_fit.h"
#include "launch/observe/metrics.h"

namespace gt {

struct BannerFacts {
  const Config& config;
  const EngineOptions& options;
  const StagePlans& plans;
  const MemoryFit& fit;
  const Backend& backend;
  const Dataset& train;
  const Dataset* valid = nullptr;
  std::string comm;  // comm_backend()
  int threads = 1;   // per rank
  int64_t resumed_from = -1;
  std::string checkpoint;  // source
  int device = 0;
  std::string transport = {};   // between GPUs
  std::string mfu = {};         // mfu_line; "": nothing to report
  std::string saves = {};       // save_text; "": the run saves nothing
  std::string prediction = {};  // of a step; "": nothing to predict it from
  std::string copies = {};      // of the state in memory; "": none
  std::string loaded = {};      // from another run's checkpoint
  Rows folders = {};            // of further curves
  Rows tokenizer = {};          // tokenizer_rows
  std::vector<std::string> notes = {};
};

Rows start_rows(const BannerFacts&);

// One line per pipeline rank: layers of its chunks, activations in flight, planned bytes by category.
std::string stage_table(const EngineOptions&, const MeshShape&, const StagePlans&);

// Bytes that a rank sends in an optimizer step, by group, for the pipeline rank that sends most.
std::string traffic_text(const StagePlans&);

// Cost of the ZeRO stage: bytes held, bytes sent per step. If a pipeline offers a choice, for both ways to reduce
// gradients (the other one is planned here).
std::string zero_text(const EngineOptions&, const MeshShape&, const StagePlans&, const Backend&);

std::string graphs_line(const ReplayCounts&);  // "96 replayed, 4 first runs, 0 launched op by op"

}  // namespace gt
