#include "launch/tools/plan/machine_types.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/check.h"
#include "launch/options/json_text.h"
#include "launch/options/near_word.h"
#include "launch/options/options.h"

namespace gt {

const std::vector<DeviceType>& device_types() {
  static const std::vector<DeviceType> kAll = {
      // name       memory   f32      16 bits  FP8      memory    link    ports   devices, GEMMs
      {"V100-16", 16e9, 15.7e12, 125e12, 0, 0.9e12, 80e9, 11e9, 8, 0.65},
      {"V100-32", 32e9, 15.7e12, 125e12, 0, 0.9e12, 80e9, 11e9, 8, 0.65},
      {"A100-40", 40e9, 19.5e12, 312e12, 0, 1.56e12, 235e9, 160e9, 8, 0.82},
      {"A100-80", 80e9, 19.5e12, 312e12, 0, 2.04e12, 235e9, 160e9, 8, 0.82},
      {"H100-PCIe", 80e9, 51e12, 756e12, 1513e12, 2.0e12, 45e9, 45e9, 8, 0.65},
      {"H100-NVL", 94e9, 60e12, 835e12, 1671e12, 3.9e12, 45e9, 45e9, 8, 0.65},
      {"H100", 80e9, 67e12, 989e12, 1979e12, 3.35e12, 330e9, 320e9, 8, 0.65},
      {"H200", 141e9, 67e12, 989e12, 1979e12, 4.8e12, 330e9, 320e9, 8, 0.65},
      {"B200", 180e9, 75e12, 2250e12, 4500e12, 7.7e12, 650e9, 320e9, 8, 0.57},
      {"B300", 270e9, 75e12, 2250e12, 4500e12, 7.7e12, 650e9, 640e9, 8, 0.73},
      {"GB200", 186e9, 80e12, 2500e12, 5000e12, 8.0e12, 650e9, 1800e9, 72, 0.57},
      {"GB300", 279e9, 80e12, 2500e12, 5000e12, 8.0e12, 650e9, 3600e9, 72, 0.73},
      {"RTX-3090", 24e9, 35.6e12, 71e12, 0, 0.936e12, 12e9, 3e9, 8, 0.8},
      {"RTX-4090", 24e9, 82.6e12, 165e12, 330e12, 1.008e12, 12e9, 3e9, 8, 0.8},
      {"RTX-5090", 32e9, 105e12, 210e12, 419e12, 1.792e12, 20e9, 3e9, 8, 0.8},
      {"A10", 24e9, 31.2e12, 125e12, 0, 0.6e12, 12e9, 6e9, 8, 0.55},
      {"L4", 24e9, 30.3e12, 121e12, 242e12, 0.3e12, 12e9, 6e9, 8, 0.5},
      {"L40S", 48e9, 91.6e12, 362e12, 733e12, 0.864e12, 20e9, 12e9, 8, 0.65},
      {"A6000", 48e9, 38.7e12, 155e12, 0, 0.768e12, 15e9, 6e9, 8, 0.75},
  };
  return kAll;
}

const char* device_type_names() {
  static const std::string kNames = [] {
    std::string out;
    for (const DeviceType& d : device_types()) out += d.name + "|";
    return out + "cpu";
  }();
  return kNames.c_str();
}

const DeviceType& device_type(std::string_view name) {
  std::vector<std::string> names;
  for (const DeviceType& d : device_types()) {
    if (d.name == name) return d;
    names.push_back(d.name);
  }
  const std::string guess = did_you_mean(name, names);
  fail(Exit::kUsage, "--device_type: expected ", device_type_names(), ", found \"", std::string(name), "\"",
       guess.empty() ? "" : " (did you mean " + guess + "?)");
}

DeviceType device_of_figures(const std::string& figures) {
  std::vector<double> x;
  for (size_t at = 0; at <= figures.size();) {
    const size_t end = std::min(figures.find(',', at), figures.size());
    std::string word = figures.substr(at, end - at);
    constexpr std::string_view kUnits = "kMGTP";
    double scale = 1, value = 0;
    if (const size_t unit = word.empty() ? std::string::npos : kUnits.find(word.back()); unit != std::string::npos)
      scale = std::pow(1e3, static_cast<double>(unit + 1)), word.pop_back();
    GT_REQUIRE(parse_double(word, value) && value * scale >= 1e6 && value * scale <= 1e18, Exit::kUsage,
               "--device_figures: expected figures of 1M to 1000P as in 989T,80G,3.35T, found \"",
               figures.substr(at, end - at), '"');
    x.push_back(value * scale);
    at = end + 1;
  }
  GT_REQUIRE(x.size() >= 3 && x.size() <= 5, Exit::kUsage,
             "--device_figures: expected 3 to 5 figures (16-bit FLOP/s, bytes of memory, its bytes/s, bytes/s of an "
             "all-reduce inside a node, of the node's ports), found ",
             x.size());
  x.insert(x.end(), {20e9, 6e9});
  const bool ports = x.size() == 7;
  return {figures, x[1], 0, x[0], 0, x[2], x[3], ports ? x[4] : 6e9, 8, 0.65};
}

MachineModel machine_model(const DeviceType& d, DType compute) {
  MachineModel m;
  const bool f32 = size_of(compute) == 4, fp8 = size_of(compute) == 1;
  GT_REQUIRE(!fp8 || d.fp8 > 0, Exit::kUsage, "--device_type ", d.name, " has no FP8 GEMMs; use precision.fp8 off");
  GT_REQUIRE(!f32 || d.f32 > 0, Exit::kUsage, "--device_figures ", d.name,
             " states no FP32 rate; plan 16 bits: --precision.amp O2");
  m.peak = f32 ? d.f32 : fp8 ? d.fp8 : d.bf16;
  m.per_node = d.per_node;
  m.link = d.link, m.nic = d.nic;
  const bool ampere_or_older = d.bf16 <= 312e12;
  m.gemm_efficiency = d.gemms;
  m.gemm_half = d.bf16 == 312e12 ? 120 : ampere_or_older ? 150 : 250;
  if (fp8) m.attention_efficiency *= d.bf16 / d.fp8;  // attention stays in 16 bits
  m.memory = 0.75 * d.bandwidth;
  if (!ampere_or_older) m.block_latency = 4e-5;
  return m;
}

}  // namespace gt
