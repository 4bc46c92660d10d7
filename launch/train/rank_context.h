// A run and where one of its ranks computes: device, mesh, stream, and the plan of its memory.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/open_stream.h"
#include "launch/config/config.h"
#include "launch/engine/engine.h"
#include "launch/engine/rank_device.h"
#include "launch/observe/memory_fit.h"

namespace gt {

struct TrainRun {
  LoadedConfig loaded;
  std::string command;  // as typed, for logs
  bool quiet = false;
  bool force = false;       // --checkpoint.resume never in a folder that holds a run
  bool range_test = false;  // a learning-rate range test: stops when the loss diverges, saves nothing, proposes a peak
};

struct RankContext {
  // Collective over the factory's world; `run` outlives this object. Throws AgreedError: kUsage where the planned
  // memory does not fit a device.
  RankContext(const TrainRun& run, GroupFactory&);
  bool speaks() const { return mesh.rank() == 0; }  // prints, and writes the files of the run

  const TrainRun& run;
  const Config& config;
  RankDevice device;
  GroupFactory& groups;  // for tensors of that device
  const Backend& backend;
  Mesh mesh;
  EngineOptions options;
  OpenStream own_stream;
  Stream stream;                 // own_stream's
  EnginePlan plan;               // of this rank
  StagePlans stage_plans;        // on the first rank of a machine, like the next two
  std::optional<MemoryFit> fit;  // of the machine's fullest device
  bool snapshot_fits = true;     // host memory has room for a copy of what the machine's ranks save
  const double started;          // now() at the begin

 private:
  void open(const std::vector<std::string>& hosts);
};

}  // namespace gt
