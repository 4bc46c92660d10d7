#include "kernels/core/out_of_memory.h"

#include <cstdio>

namespace gt {
namespace {

thread_local const char* purpose = "the program";

}  // namespace

OutOfMemory::OutOfMemory(size_t bytes) noexcept {
  std::snprintf(text_, sizeof text_, "out of memory: %zu bytes for %s", bytes, purpose);
}

MemoryPurpose::MemoryPurpose(const char* text) noexcept : before_(purpose) { purpose = text; }
MemoryPurpose::~MemoryPurpose() { purpose = before_; }

}  // namespace gt
