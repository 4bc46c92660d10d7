// Fixture of tests/golden/make_torch_gpt2.py: weights, samples, and PyTorch's results.
#pragma once
#include "launch/tools/verify/mesh_run.h"

namespace gt {

struct TorchFixture {
  // all tensors except the samples, by name: "weight/embed.weight"
  Logical f32;
  std::vector<std::vector<int32_t>> samples;             // seq+1 tokens each
  Logical with_prefix(const std::string& prefix) const;  // names without the prefix
};

// Reads a file below tests/golden.
TorchFixture read_torch_fixture(const std::string& name);

// Ten AdamW steps on the fixture's model, with the script's settings.
MeshRun torch_fixture_run(const TorchFixture&, const Logical& weights, MeshShape);

}  // namespace gt
