// Checks that every emulated runtime call makes first. A call from a thread that has selected no device aborts: with
// several GPUs it would create a context on GPU 0.
// GPTTRAIN_EMULATED_FAILS=N or N:ERROR: the N-th kernel breaks the device with that error number (default 700, illegal
// address). As with a GPU, the error is asynchronous and sticky: later calls return it, nothing is computed, and only a
// new process recovers.
#pragma once
#include <cuda_runtime_api.h>

namespace gt::emulated {

cudaError_t entered();          // cudaSuccess, or the error that the calling function returns at once
bool kernel_runs();             // counts one launch; false: the device is broken, and the host learns later
void select_device();           // marks the calling thread as having selected a device
void leave_error(cudaError_t);  // records the error of a refused call for cudaGetLastError on this thread
cudaError_t last_error();       // the sticky device error once reported, otherwise the recorded one, cleared

}  // namespace gt::emulated
