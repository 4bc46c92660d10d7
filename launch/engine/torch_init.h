// Initial weights as llm.c draws them (llmc/rand.h, train_gpt2.cu), which are those of PyTorch's generator on a CPU:
// one MT19937 stream with seed 42 through all matrices of the model, tensor after tensor. So a run can begin where a
// peer's begins. The stream is the logical model's: every layout takes its pieces of it.
#pragma once
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "model/model_spec.h"
#include "parallel/zero/shard_view.h"

namespace gt {

// The next `count` (at least 16) numbers of N(0, std): uniforms from the low 24 bits, then Box-Muller in blocks of 16;
// where 16 does not divide count, the last 16 numbers are drawn once more.
std::vector<float> torch_normals(std::mt19937& random, int64_t count, float std);

// Overwrites what these views hold of the model's matrices. The others (norms, biases) are not drawn: they stay.
void init_as_torch(const ModelSpec&, const std::vector<ShardView>& values, const Backend&, Stream);

}  // namespace gt
