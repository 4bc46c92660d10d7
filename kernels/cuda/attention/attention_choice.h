// Selects the attention implementation: cuDNN where available and supported, otherwise our own kernels (attention.h).
// Both use the same tensors, log-sum-exp included, so forward and backward may use different implementations.
#pragma once
#include <string>

#include "kernels/backend.h"
#include "kernels/cuda/context.h"

namespace gt::cuda {

// Entries of Backend (kernels/backend.h).
void tune_attention(const AttentionTuning&);
std::string take_attention_log();
std::string attention_library();

// Scratch bytes of the attention backward: predicted without a device, and the largest requested so far by the stream's
// plans.
int64_t planned_attention_bytes(const AttentionGrad&);
int64_t held_attention_bytes(const Context&);

// Drops the plans of a stream. Call before closing it.
void drop_attention_plans(const Context&);

}  // namespace gt::cuda
