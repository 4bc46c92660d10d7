#include "launch/observe/peak_rates.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/core/cache_files.h"
#include "kernels/core/check.h"
#include "kernels/core/files.h"
#include "kernels/core/json.h"
#include "kernels/core/json_field.h"

namespace gt {
namespace {

nlohmann::ordered_json or_null(double x) {
  return std::isnan(x) ? nlohmann::ordered_json() : nlohmann::ordered_json(x);
}

constexpr int64_t kMostBytes = 1 << 20;

// Throws Error naming the position or the key.
PeakRates parse(const std::string& text) {
  const auto j = parse_json<nlohmann::json>(text, "", {.bytes = kMostBytes});
  PeakRates c;
  c.device = field<std::string>(j, "device");
  c.dtype = field<std::string>(j, "dtype");
  c.gemm = field<double>(j, "gemm_flops");
  c.copy = field<double>(j, "copy_bytes");
  if (!member(j, "gemm_fp8_flops").is_null()) c.gemm_fp8 = field<double>(j, "gemm_fp8_flops");
  for (const auto& a : member(j, "attention"))
    c.attention.push_back({field<int64_t>(a, "head_dim"), field<int64_t>(a, "seq"), field<double>(a, "forward_flops"),
                           field<double>(a, "backward_flops")});
  return c;
}

// No device is beyond that.
bool plausible(double rate) { return rate > 0 && rate < 1e20; }

bool sound(const PeakRates& c) {
  return plausible(c.gemm) && plausible(c.copy) && (std::isnan(c.gemm_fp8) || plausible(c.gemm_fp8)) &&
         std::all_of(c.attention.begin(), c.attention.end(), [](const AttentionCeiling& a) {
           return a.head_dim > 0 && a.seq > 0 && plausible(a.forward) && plausible(a.backward);
         });
}

std::optional<PeakRates> load(const std::string& text, const std::string& device, const std::string& dtype) try {
  PeakRates c = parse(text);
  if (c.device != device || c.dtype != dtype || !sound(c)) return {};
  return c;
} catch (const Error&) { return {}; } catch (const nlohmann::json::exception&) {
  return {};
}

}  // namespace

const AttentionCeiling* PeakRates::attention_at(int64_t head_dim, int64_t seq) const {
  for (const AttentionCeiling& a : attention)
    if (a.head_dim == head_dim && a.seq == seq) return &a;
  return nullptr;
}

std::string ceilings_file(const std::string& device, DType t) {
  const std::string folder = cache_folder();
  if (folder.empty()) return "";
  std::string name;
  for (const char c : device) name += std::isalnum(static_cast<unsigned char>(c)) ? c : '-';
  return cat(folder, "/ceilings-", name, "-", name_of(t), ".json");
}

void save_ceilings(PeakRates c, const std::string& path) {
  const bool cached = std::filesystem::path(path).parent_path() == cache_folder();
  if (const auto before =
          load(cached ? read_cached(path, kMostBytes) : read_if_there(path, kMostBytes), c.device, c.dtype))
    for (const AttentionCeiling& a : before->attention)
      if (c.attention_at(a.head_dim, a.seq) == nullptr) c.attention.push_back(a);
  nlohmann::ordered_json shapes = nlohmann::ordered_json::array();
  for (const AttentionCeiling& a : c.attention)
    shapes.push_back(
        {{"head_dim", a.head_dim}, {"seq", a.seq}, {"forward_flops", a.forward}, {"backward_flops", a.backward}});
  const nlohmann::ordered_json j{{"device", c.device},   {"dtype", c.dtype},
                                 {"gemm_flops", c.gemm}, {"gemm_fp8_flops", or_null(c.gemm_fp8)},
                                 {"copy_bytes", c.copy}, {"attention", shapes}};
  if (cached) {
    const std::string problem = write_cached(path, j.dump(2) + "\n");
    GT_REQUIRE(problem.empty(), Exit::kIo, problem);
    return;
  }
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

std::optional<PeakRates> load_ceilings(const std::string& device, DType t) {
  const std::string path = ceilings_file(device, t);
  return path.empty() ? std::nullopt : load(read_cached(path, kMostBytes), device, name_of(t));
}

PeakRates read_ceilings(const std::string& path, DType t) {
  constexpr const char* kNext = "; create one with gpttrain bench ceilings --output FILE";
  PeakRates c;
  try {
    c = parse(read_whole_file(path, kMostBytes));
  } catch (const Error& e) { fail(Exit::kUsage, path, ": no ceilings: ", e.what(), kNext); }
  GT_REQUIRE(sound(c), Exit::kUsage, path,
             ": a rate is not above 0, or above 1e20 a second, or a size of attention is not above 0");
  GT_REQUIRE(c.dtype == name_of(t), Exit::kUsage, path, ": ceilings of ", c.dtype, ", but the config's GEMMs are ",
             name_of(t), "; choose --precision.amp and --precision.dtype, or measure ceilings with them");
  return c;
}

PeakRates planning_ceilings(DType t) {
  GT_REQUIRE(size_of(t) == 2, Exit::kUsage,
             "the planning constants of an H200 are for 16-bit types, but the config's GEMMs are ", name_of(t),
             ": choose --precision.amp O2, or give --ceilings FILE, written by gpttrain bench ceilings --output FILE");
  PeakRates c;
  c.device = "NVIDIA H200";
  c.dtype = name_of(t);
  c.gemm = 790e12;
  c.gemm_fp8 = 1250e12;
  c.copy = 4.3e12;
  // cudnn-frontend's sdpa_benchmark_training, cuDNN 9.19; head_dim 64 at 1024 tokens is extrapolated.
  c.attention = {
      {128, 4096, 591e12, 474e12}, {128, 2048, 484e12, 370e12}, {64, 2048, 310e12, 264e12}, {64, 1024, 270e12, 230e12}};
  c.planned = true;
  return c;
}

}  // namespace gt
