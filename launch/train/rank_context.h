// Run options, and the environment of one of its ranks: device, mesh, stream, memory plan.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/open_stream.h"
#include "launch/config/config.h"
#include "launch/engine/engine.h"
#include "launch/engine/rank_device.h"
#include "launch/observe/memory_fit.h"
#include "launch/observe/metrics.h"

namespace gt {

struct TrainRun {
  LoadedConfig loaded;
  std::string command;  // as typed, for logs
  bool quiet = false;
  bool force = false;       // --checkpoint.resume never in a folder that holds a run
  bool range_test = false;  // learning-rate range test: stops on divergence, saves nothing, suggests a peak
  // Makes the sink that writes report.html every so many steps (0: at the end alone); empty: there is no report.
  std::function<std::unique_ptr<Sink>(int64_t every)> report_sink;
};

struct RankContext {
  // Collective over the factory's world; `run` must outlive this object. Throws AgreedError kUsage if the planned
  // memory does not fit a device.
  RankContext(const TrainRun& run, GroupFactory&);
  bool is_rank0() const { return mesh.rank() == 0; }  // prints, and writes the files of the run

  const TrainRun& run;
  const Config& config;
  RankDevice device;
  GroupFactory& groups;  // for tensors on that device
  const Backend& backend;
  Mesh mesh;
  EngineOptions options;
  OpenStream own_stream;
  Stream stream;                 // own_stream's
  EnginePlan plan;               // of this rank
  StagePlans stage_plans;        // on the first rank of a machine, like the next two
  std::optional<MemoryFit> fit;  // of the machine's fullest device
  bool snapshot_fits = true;     // host memory fits a copy of the checkpoint data of the machine's ranks
  const double started;          // now() at construction

 private:
  void open(const std::vector<std::string>& hosts);
};

}  // namespace gt
