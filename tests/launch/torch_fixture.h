// What tests/golden/make_torch_gpt2.py wrote: weights, samples, and what PyTorch made of them.
#pragma once
#include "launch/verify/mesh_run.h"

namespace gt {

struct TorchFixture {
  Logical f32;                                           // all tensors but the samples, by name: "weight/embed.weight"
  std::vector<std::vector<int32_t>> samples;             // seq+1 tokens each
  Logical with_prefix(const std::string& prefix) const;  // named without it
};

// A file below tests/golden.
TorchFixture read_torch_fixture(const std::string& name);

// Ten steps of AdamW on the fixture's model, as the script takes them.
MeshRun torch_fixture_run(const TorchFixture&, const Logical& weights, MeshShape);

}  // namespace gt
