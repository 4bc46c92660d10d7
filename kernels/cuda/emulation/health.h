// What every call of the emulated runtime asks first. A thread that has selected no device and calls nevertheless dies:
// with several GPUs its call would begin a context on GPU 0.
// GPTTRAIN_EMULATED_FAILS=N or N:ERROR: the N-th kernel breaks the device, with the error of that number (without: 700,
// an illegal address). As with a GPU nobody is told at once: what is called from then on returns the error, nothing is
// computed any more, and nothing helps but a new process.
#pragma once
#include <cuda_runtime_api.h>

namespace gt::emulated {

cudaError_t entered();  // what the call that asks returns at once, unless cudaSuccess
bool kernel_runs();     // counts one; false: the device is broken, and its host will hear of it
void select_device();   // of the calling thread
void leave_error(cudaError_t);  // of a call that was refused, for whoever asks next on this thread
cudaError_t last_error();       // the device's for good, or what was left, once

}  // namespace gt::emulated
