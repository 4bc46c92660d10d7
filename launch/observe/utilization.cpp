#include "launch/observe/utilization.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/core/check.h"

namespace gt {

double peak_bf16_flops(std::string_view device) {
  struct Known {
    std::string_view name;
    double teraflops;
  };
  // The first entry contained in the device's name applies: special editions precede their base models.
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  static constexpr Known kDevices[] = {{"H200 NVL", kNan},        {"H200", 989.4},    {"H100 NVL", kNan},
                                       {"H100 PCIe", 756},        {"H100", 989.4},    {"A100", 312},
                                       {"GB200", kNan},           {"B200", 2250},     {"RTX 4090 D", kNan},
                                       {"RTX 4090 Laptop", kNan}, {"RTX 4090", 165.2}};
  for (const Known& k : kDevices)
    if (device.find(k.name) != std::string_view::npos) return k.teraflops * 1e12;
  return kNan;
}

double peak_fp8_flops(std::string_view device) {
  const bool none = device.find("A100") != std::string_view::npos;
  return none ? std::numeric_limits<double>::quiet_NaN() : 2 * peak_bf16_flops(device);
}

namespace {

// Returns the number of blocks that are recomputed: the first recompute_layers of every virtual stage, or all.
double recomputed_blocks(const EngineOptions& o, int pp) {
  if (o.recompute != Recompute::kFull) return 0;
  if (o.recompute_layers == 0) return static_cast<double>(o.model.layers);
  const auto layers = describe(o.model).layer_costs();
  const std::vector<int> bounds = stage_boundaries(o, pp);
  int64_t again = 0;
  for (size_t k = 0; k + 1 < bounds.size(); ++k) {
    int64_t blocks = 0;
    for (int i = bounds[k]; i < bounds[k + 1]; ++i) blocks += layers[static_cast<size_t>(i)].type == "block";
    again += std::min(blocks, o.recompute_layers);
  }
  return static_cast<double>(again);
}

}  // namespace

StepFlops step_flops(const EngineOptions& o, int pp, int64_t tokens, int64_t length, double blocks) {
  const ModelSpec m = describe(o.model);
  const double n = static_cast<double>(tokens), all = static_cast<double>(o.model.layers);
  const double run = blocks < 0 ? all : blocks;
  // Means per block: one causal attention forward, its counterpart with no pair masked, weights of the linear layers.
  const double attention = 2 * (m.attention_width(length) / all) * n;
  double square = 0, weights = 0, frozen = 0, frozen_anywhere = 0;
  for (const ModuleSpec& part : m.modules) {
    frozen_anywhere += static_cast<double>(part.frozen_weights);
    if (part.layer != 1) continue;
    // Bidirectional attention already counts all pairs.
    square += (o.model.mask == MaskKind::kFull ? 2 : 4) * static_cast<double>(part.attention) *
              static_cast<double>(length) * n;
    weights += static_cast<double>(part.weights);
    frozen += static_cast<double>(part.frozen_weights);
  }
  const double head = static_cast<double>(m.matmul_parameters()) - all * weights;
  StepFlops f;
  f.causal = 6 * n * (run * weights + head) + 3 * run * attention;
  f.causal -= 2 * n * (run * frozen + frozen_anywhere - all * frozen);  // no gradient of frozen weights
  f.full = f.causal + 3 * run * (square - attention);
  const double again = recomputed_blocks(o, pp) * run / all;
  f.hardware = f.causal + again * (2 * n * weights + attention);
  return f;
}

const StepFlops& StepFlopsCache::of(const EngineOptions& o, int pp, int64_t tokens, int64_t length, double blocks) {
  if (tokens != tokens_ || length != length_ || blocks != blocks_) flops_ = step_flops(o, pp, tokens, length, blocks);
  tokens_ = tokens, length_ = length, blocks_ = blocks;
  return flops_;
}

std::string flops_text(double rate) {
  return rate < 1e12 ? fmt::format("{:.1f} GFLOP/s", rate * 1e-9) : fmt::format("{:.2f} TFLOP/s", rate * 1e-12);
}

std::string mfu_line(double peak_flops, const std::optional<PeakRates>& c) {
  const std::string text = std::isnan(peak_flops)
                               ? "n/a: no data-sheet peak known for this device"
                               : cat("of ", flops_text(peak_flops), ", dense bf16 by the data sheet");
  if (!c) return text + "; gpttrain bench ceilings measures its peak once, for every later run";
  return cat(text, "; measured peak: GEMMs at ", flops_text(c->gemm), " in ", c->dtype);
}

}  // namespace gt
