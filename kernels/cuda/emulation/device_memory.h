// Device memory of the emulation: one range of addresses. With GPTTRAIN_EMULATED_GUARD=1 only kernels, copies and
// products may touch it: host code that reads or writes it dies of a segmentation fault, as it would with a GPU (two
// system calls a launch: slow). With GPTTRAIN_EMULATED_FENCE=1 an allocation ends, to 16 bytes, where a closed page
// begins, and what was freed is closed: kernels that leave their tensors die.
#pragma once
#include <cstddef>

namespace gt::emulated {

void* device_alloc(size_t bytes);  // NaN; nullptr: no room
void device_free(void*);
bool is_device_memory(const void*);

// What timed events read: moved by products alone, so that timing has one outcome.
extern double clock_us;

// While one exists its thread is the device: memory is open to it, and no other thread is the device.
class OnDevice {
 public:
  OnDevice();
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
};

}  // namespace gt::emulated
