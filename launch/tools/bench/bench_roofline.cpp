// gpttrain bench roofline: lower bound on the step time of a config, op by op. Needs no device: ops are recorded from a
// step on the null backend; rates come from gpttrain bench ceilings, a file, or planning constants.
#include <fmt/format.h>

#include <cmath>

#include "launch/config/config_precision.h"
#include "launch/engine/engine_options.h"
#include "launch/observe/roofline.h"
#include "launch/observe/sinks/progress.h"
#include "launch/tools/bench/subcommands.h"

namespace gt {
namespace {

// Returns the stored ceilings of the device that the config would run on.
std::optional<PeakRates> kept_ceilings(const Config& c, DType t) {
  std::string why;
  if (c.device.kind != DeviceChoice::kCpu)
    if (const Backend* cuda = cuda_backend(&why)) return load_ceilings(cuda->device->describe(0), t);
  if (c.device.kind == DeviceChoice::kCuda) return {};
  set_cpu_isa(c.device.isa);
  return load_ceilings(cpu_backend().device->describe(0), t);
}

PeakRates choose_ceilings(const Config& c, const std::string& source, DType t) {
  if (source != "auto" && source != "planning") return read_ceilings(source, t);
  if (source == "auto")
    if (auto kept = kept_ceilings(c, t)) return *kept;
  return planning_ceilings(t);
}

std::string milliseconds(double seconds) {
  return std::isnan(seconds) ? "n/a" : fmt::format("{:.4g} ms", 1e3 * seconds);
}

}  // namespace

Exit run_bench_roofline(const Command& command) {
  const auto& args = command.get<RooflineArgs>();
  Config c = command.loaded.config;
  const PeakRates ceilings = choose_ceilings(c, args.ceilings, precision_of(c).linear());
  if (ceilings.planned) c.device.kind = DeviceChoice::kCuda;  // op list of a GPU step
  const EngineOptions o = engine_options(c, 1);
  const MeshShape shape = mesh_shape(c);
  const StepRoofline roof = step_roofline(o, shape, ceilings);
  const RankRoofline& rank = roof.ranks[roof.slowest];
  const double tokens = static_cast<double>(c.train.global_batch * c.model.seq);

  fmt::print("{} parameters, tp {} pp {} dp {}, a step of {} sequences of {} tokens, {} at once\n",
             format_thousands(describe(o.model).parameters()), shape.tp, shape.pp, shape.dp, c.train.global_batch,
             c.model.seq, c.train.micro_batch);
  fmt::print("ceilings  {}\n\n", ceilings_text(ceilings, c.model.head_width(), c.model.seq));
  if (shape.pp > 1) fmt::print("pipeline rank {}, the slowest:\n", roof.slowest);
  fmt::print("{}\n", roofline_table(rank, ceilings));
  for (size_t k = 0; shape.pp > 1 && k < roof.ranks.size(); ++k)
    fmt::print("pipeline rank {}: R {}, R0 {}, as called {}\n", k, milliseconds(roof.ranks[k].r),
               milliseconds(roof.ranks[k].r0), milliseconds(roof.ranks[k].called));
  if (std::isnan(roof.r))
    fmt::print("R         n/a: {}\n",
               std::isnan(roof.r0)
                   ? "no FP8 GEMM peak available"
                   : "no peak for attention of this shape: run gpttrain bench ceilings with this config");
  else
    fmt::print("R         {}, {} tokens/s; GEMM : attention : memory {}\n", milliseconds(roof.r),
               format_count(tokens / roof.r), shares_text(rank.fused_seconds));
  if (!std::isnan(roof.r0))
    fmt::print("R0        {}, {} tokens/s, with attention at GEMM rate\n", milliseconds(roof.r0),
               format_count(tokens / roof.r0));
  if (!std::isnan(roof.called))
    fmt::print("as called {}, {} tokens/s: the ops as they are, at the same rates\n", milliseconds(roof.called),
               format_count(tokens / roof.called));
  if (shape.world() > 1) fmt::print("excluding communication and the pipeline bubble\n");
  return Exit::kOk;
}

}  // namespace gt
