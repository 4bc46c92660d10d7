// Who computes attention: cuDNN where it is and takes the call, our own kernels (attention.h) else. Both read and write
// the same tensors, the log-sum-exp among them, so the forward may be one's and the backward the other's.
#pragma once
#include <string>

#include "kernels/backend.h"
#include "kernels/cuda/context.h"

namespace gt::cuda {

// Of Backend (kernels/backend.h).
void tune_attention(const AttentionTuning&);
std::string attention_news();
std::string attention_library();

// Bytes of scratch for the backward of attention: by what is known without a device, and the most that the stream's
// plans have asked for.
int64_t planned_attention_bytes(const AttentionGrad&);
int64_t held_attention_bytes(const Context&);

// Before a stream is closed.
void forget_attention(const Context&);

}  // namespace gt::cuda
