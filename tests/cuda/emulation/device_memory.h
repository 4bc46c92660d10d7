// Emulated device memory: one address range. GPTTRAIN_EMULATED_GUARD=1: only kernels, copies and GEMMs may touch it;
// host code that does dies with SIGSEGV, as with a GPU (slow: two system calls per launch). GPTTRAIN_EMULATED_FENCE=1:
// an allocation ends, rounded to 16 bytes, at a protected page, and freed memory is protected: out-of-bounds and
// use-after-free accesses die.
#pragma once
#include <cstddef>

namespace gt::emulated {

void* device_alloc(size_t bytes);  // filled with NaN; nullptr: out of memory
void device_free(void*);
bool is_device_memory(const void*);

// The clock that timed events read. Advanced by GEMMs alone, so that timing is deterministic.
extern double clock_us;

// While one exists, its thread acts as the device: device memory is accessible, and other threads wait.
class OnDevice {
 public:
  OnDevice();
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
};

}  // namespace gt::emulated
