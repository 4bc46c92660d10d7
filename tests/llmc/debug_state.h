// Debug state written by llm.c's train_gpt2.py for tests of other trainers: a model, and PyTorch's results for one
// batch: logits, loss, gradients, and the losses of ten AdamW steps. tests/golden/make_llmc.py writes small ones.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "launch/engine/logical.h"

namespace gt {

struct DebugState {
  std::string model;                          // path of the weights
  int64_t positions = 0, vocab = 0;           // of the model
  int64_t batch = 0, length = 0;              // B sequences of T tokens
  std::vector<int32_t> x;                     // B*T tokens
  std::vector<std::vector<int32_t>> samples;  // per sequence T+1 tokens: those of x and the last target
  std::vector<float> logits;                  // [B*T, vocab]
  double loss = 0;
  Logical weights, grads;      // by our names; of positions the first T, which one batch uses
  double lr = 1e-4;            // of all steps; β 0.9 and 0.95, ε 1e-8, no weight decay, gradient norm clipped at 1
  std::vector<double> losses;  // before each of ten steps
};

// Reads the one NAME_debug_state.bin of a folder and NAME.bin beside it. Losses come from NAME_losses.txt, otherwise
// those that llm.c publishes for GPT-2 124M. Fails the test, naming the violated rule of the format.
DebugState read_debug_state(const std::string& folder);

}  // namespace gt
