// Cases of DLPerf's GPT benchmark (github.com/Oneflow-Inc/DLPerf, OneFlow and Megatron-LM on V100-SXM2-16GB, 8 per
// node, one 100 Gb/s InfiniBand port): sizes by name, and the published rows.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace gt {

// Name: <group>_<dp>x<tp>x<pp>_<global batch>_<hidden>x<layers>.
struct SuiteCase {
  std::string name, group;
  int64_t dp = 1, tp = 1, pp = 1, global_batch = 1, hidden = 1, layers = 1;
  int64_t heads = 1, seq = 2048, vocab = 51200, micro_batch = 1;
  int64_t devices() const { return dp * tp * pp; }
  double tokens() const { return static_cast<double>(global_batch * seq); }
  // FLOPs of a step by the SC'21 Megatron paper's formula, as DLPerf's table: full recomputation, every query sees all
  // keys.
  double flops_hw_full_nc() const;
  std::string flags() const;  // of gpttrain bench
};

// Published speed of a case.
struct SuiteReference {
  const char* name;
  double megatron_sequences, megatron_tflops, oneflow_sequences, oneflow_tflops;  // per second; per device
};
const std::vector<SuiteReference>& suite_references();

// Throws kUsage for a name of another form or sizes without a case in DLPerf's table of heads. tiny: an eighth of the
// width, a quarter of the layers, 128 tokens.
SuiteCase parse_suite_case(const std::string& name, bool tiny);

}  // namespace gt
