// Initial weights as drawn by llm.c (llmc/rand.h, train_gpt2.cu), equal to PyTorch's CPU generator: one MT19937 stream
// with seed 42 through all matrices of the model, in order. A run can thus start from the weights of an llm.c baseline.
// The stream is defined on logical tensors; every layout takes its shards of it.
#pragma once
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "model/model_spec.h"
#include "parallel/zero/shard_view.h"

namespace gt {

// Returns the next `count` (at least 16) samples of N(0, std): uniforms from the low 24 bits, then Box-Muller in blocks
// of 16. If 16 does not divide count, the last 16 samples are drawn again.
std::vector<float> torch_normals(std::mt19937& random, int64_t count, float std);

// Overwrites the model's matrices in these views. Other parameters (norms, biases) are unchanged.
void init_as_torch(const ModelSpec&, const std::vector<ShardView>& values, const Backend&, Stream);

}  // namespace gt
