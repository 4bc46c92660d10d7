#include "launch/tools/bench/suite_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <regex>

#include "kernels/core/check.h"

namespace gt {
namespace {

// Attention heads by hidden size.
const std::map<int64_t, int64_t> kHeads{{768, 12}, {1536, 16}, {2304, 24}, {3072, 32}};

// Sequences of a microbatch by group: data parallel 2; tensor parallel the whole batch; both the replica's; with a
// pipeline of 32 microbatches.
int64_t micro_batch_of(const SuiteCase& c) {
  if (c.pp > 1) return std::max<int64_t>(1, c.global_batch / (c.dp * 32));
  if (c.group == "DP") return 2;
  return c.global_batch / c.dp;
}

}  // namespace

double SuiteCase::flops_hw_full_nc() const {
  const auto h = static_cast<double>(hidden);
  return 96 * tokens() * static_cast<double>(layers) * h * h *
         (1 + static_cast<double>(seq) / (6 * h) + static_cast<double>(vocab) / (16 * static_cast<double>(layers) * h));
}

std::string SuiteCase::flags() const {
  return fmt::format(
      "--model.hidden {} --model.layers {} --model.heads {} --model.seq {} --model.vocab {} --tp {} --pp {} --dp {} "
      "--train.micro_batch {} --train.global_batch {} --amp O2 --precision.dtype fp16 --optim.type adam "
      "--parallel.recompute full",
      hidden, layers, heads, seq, vocab, tp, pp, dp, micro_batch, global_batch);
}

const std::vector<SuiteReference>& suite_references() {
  static const std::vector<SuiteReference> kAll = {
      {"DP_1x1x1_2_1536x16", 4.31, 43.25, 4.92, 49.43},
      {"DP_8x1x1_16_1536x16", 33.27, 41.74, 38.28, 48.03},
      {"DP_32x1x1_64_1536x16", 93.63, 29.37, 123.40, 38.71},
      {"MP_1x1x1_8_768x12", 13.09, 32.63, 15.23, 37.98},
      {"MP_1x8x1_16_1536x16", 23.11, 28.99, 24.92, 31.26},
      {"2D_4x8x1_32_2304x24", 21.21, 20.03, 21.62, 20.41},
      {"DP_PP_8x1x4_512_1536x16", 104.63, 32.82, 127.80, 40.09},
      {"MP_PP_1x8x4_512_2304x24", 23.10, 21.80, 26.67, 25.18},
      {"2D_PP_2x4x4_512_2304x24", 33.40, 31.53, 39.03, 36.85},
  };
  return kAll;
}

SuiteCase parse_suite_case(const std::string& name, bool tiny) {
  static const std::regex kForm(
      R"((DP|MP|2D|DP_PP|MP_PP|2D_PP)_(\d{1,4})x(\d{1,4})x(\d{1,4})_(\d{1,6})_(\d{1,5})x(\d{1,3}))");
  std::smatch part;
  GT_REQUIRE(std::regex_match(name, part, kForm), Exit::kUsage, "--case ", name,
             ": expected GROUP_DPxTPxPP_BATCH_HIDDENxLAYERS, as in DP_1x1x1_2_1536x16, GROUP one of DP, MP, 2D, DP_PP, "
             "MP_PP, 2D_PP");
  SuiteCase c;
  c.name = name, c.group = part[1];
  const auto n = [&](size_t k) { return static_cast<int64_t>(std::stoll(part[k])); };
  c.dp = n(2), c.tp = n(3), c.pp = n(4), c.global_batch = n(5), c.hidden = n(6), c.layers = n(7);
  const auto heads = kHeads.find(c.hidden);
  GT_REQUIRE(heads != kHeads.end(), Exit::kUsage, "--case ", name, ": hidden ", c.hidden,
             ": expected 768, 1536, 2304 or 3072, whose number of heads DLPerf gives");
  c.heads = heads->second;
  GT_REQUIRE(c.dp > 0 && c.tp > 0 && c.pp > 0 && c.layers > 0 && c.global_batch > 0 && c.global_batch % c.dp == 0,
             Exit::kUsage, "--case ", name, ": expected sizes above 0 and a batch that dp divides");
  c.micro_batch = micro_batch_of(c);
  if (tiny) c.hidden /= 8, c.layers = std::max<int64_t>(c.pp, c.layers / 4), c.seq = 128;
  return c;
}

}  // namespace gt
