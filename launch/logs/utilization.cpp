#include "launch/logs/utilization.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "data/index_store.h"
#include "kernels/core/check.h"

namespace gt {

double peak_bf16_flops(std::string_view device) {
  struct Known {
    std::string_view name;
    double teraflops;
  };
  // The first whose words are in the device's name: special editions before what they are editions of.
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  static constexpr Known kDevices[] = {{"H200 NVL", kNan},        {"H200", 989.4},    {"H100 NVL", kNan},
                                       {"H100 PCIe", 756},        {"H100", 989.4},    {"A100", 312},
                                       {"GB200", kNan},           {"B200", 2250},     {"RTX 4090 D", kNan},
                                       {"RTX 4090 Laptop", kNan}, {"RTX 4090", 165.2}};
  for (const Known& k : kDevices)
    if (device.find(k.name) != std::string_view::npos) return k.teraflops * 1e12;
  return kNan;
}

namespace {

// Blocks that are computed twice: the first recompute_layers of every virtual stage, or all.
double recomputed_blocks(const EngineOptions& o, int pp) {
  if (o.model.recompute != Recompute::kFull) return 0;
  if (o.model.recompute_layers == 0) return static_cast<double>(o.model.layers);
  const auto layers = o.model.layer_costs();
  const std::vector<int> bounds = stage_boundaries(o, pp);
  int64_t again = 0;
  for (size_t k = 0; k + 1 < bounds.size(); ++k) {
    int64_t blocks = 0;
    for (int i = bounds[k]; i < bounds[k + 1]; ++i) blocks += layers[static_cast<size_t>(i)].type == "block";
    again += std::min(blocks, o.model.recompute_layers);
  }
  return static_cast<double>(again);
}

}  // namespace

StepFlops step_flops(const EngineOptions& o, int pp, int64_t tokens, int64_t length, double blocks) {
  const GptConfig& m = o.model;
  const double n = static_cast<double>(tokens), layers = blocks < 0 ? static_cast<double>(m.layers) : blocks;
  const auto width = static_cast<double>(m.hidden);
  // One causal attention forward, and the linears' weights, of a block.
  const double attention = 2 * width * static_cast<double>(length) * n;
  const double weights = width * static_cast<double>(m.qkv_width() + m.hidden + 2 * m.ffn);
  const double head = static_cast<double>(m.matmul_parameters()) - static_cast<double>(m.layers) * weights;
  StepFlops f;
  f.causal = 6 * n * (layers * weights + head) + 3 * layers * attention;
  f.full = f.causal + 3 * layers * attention;
  const double again = recomputed_blocks(o, pp) * layers / static_cast<double>(m.layers);
  f.hardware = f.causal + again * (2 * n * weights + attention);
  return f;
}

std::string flops_text(double rate) {
  return rate < 1e12 ? fmt::format("{:.1f} GFLOP/s", rate * 1e-9) : fmt::format("{:.2f} TFLOP/s", rate * 1e-12);
}

std::string mfu_line(double peak_flops, const std::optional<Ceilings>& c) {
  const std::string text = std::isnan(peak_flops)
                               ? "n/a: no data sheet of this device is known here"
                               : cat("of ", flops_text(peak_flops), ", dense bf16 by the data sheet");
  if (!c) return text + "; gpttrain bench ceilings measures what it does";
  return cat(text, "; its ceiling as measured: products at ", flops_text(c->gemm), " in ", c->dtype);
}

std::string ceilings_file(const std::string& device, DType t) {
  const std::string indexes = default_cache_dir();
  if (indexes.empty()) return "";
  std::string name;
  for (const char c : device) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '-';
  return cat(std::filesystem::path(indexes).parent_path().string(), "/ceilings-", name, "-", name_of(t), ".json");
}

void save_ceilings(const Ceilings& c, const std::string& path) {
  const nlohmann::ordered_json j{{"device", c.device},
                                 {"dtype", c.dtype},
                                 {"gemm_flops", c.gemm},
                                 {"copy_bytes", c.copy},
                                 {"attention_forward_flops", c.attention_forward},
                                 {"attention_backward_flops", c.attention_backward}};
  std::error_code ec;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ec);
  const std::string aside = cat(path, ".", ::getpid());
  {
    std::ofstream out(aside);
    out << j.dump(2) << "\n";
    out.close();
    GT_REQUIRE(out, Exit::kIo, aside, ": cannot be written");
  }
  std::filesystem::rename(aside, path, ec);
  GT_REQUIRE(!ec, Exit::kIo, path, ": cannot be written: ", ec.message());
}

std::optional<Ceilings> load_ceilings(const std::string& device, DType t) try {
  std::ifstream in(ceilings_file(device, t));
  if (!in) return {};
  const auto j = nlohmann::json::parse(in);
  Ceilings c{j.at("device").get<std::string>(),
             j.at("dtype").get<std::string>(),
             j.at("gemm_flops").get<double>(),
             j.at("copy_bytes").get<double>(),
             j.at("attention_forward_flops").get<double>(),
             j.at("attention_backward_flops").get<double>()};
  if (c.device != device || c.dtype != name_of(t) || !(c.gemm > 0)) return {};
  return c;
} catch (const nlohmann::json::exception&) { return {}; }

}  // namespace gt
