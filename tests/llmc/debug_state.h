// What llm.c's train_gpt2.py leaves for tests of other trainers: a model, and what PyTorch made of one batch with it
// (its logits, loss and gradients, and the losses of ten AdamW steps). tests/golden/make_llmc.py writes small ones.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "launch/engine/logical.h"

namespace gt {

struct DebugState {
  std::string model;                          // the file of the weights
  int64_t positions = 0, vocab = 0;           // of the model
  int64_t batch = 0, length = 0;              // B sequences of T tokens
  std::vector<int32_t> x;                     // B*T tokens
  std::vector<std::vector<int32_t>> samples;  // by sequence T+1 tokens: those of x and the last target
  std::vector<float> logits;                  // [B*T, vocab]
  double loss = 0;
  Logical weights, grads;      // by our names; of positions the first T, all that one batch can reach
  double lr = 1e-4;            // of the steps: β 0.9 and 0.95, ε 1e-8, no weight decay, gradient norm clipped at 1
  std::vector<double> losses;  // before each of ten steps
};

// The one NAME_debug_state.bin of the folder and NAME.bin beside it; losses from NAME_losses.txt, or without it those
// that llm.c publishes for GPT-2 124M. Fails the test with the rule of the format that a file breaks.
DebugState read_debug_state(const std::string& folder);

}  // namespace gt
