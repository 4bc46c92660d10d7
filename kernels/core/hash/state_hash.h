// 64-bit hash of process-local state: equal for equal states, different for others except for rare collisions.
#pragma once
#include <cstdint>

namespace gt {

class StateHash {
 public:
  StateHash& add(uint64_t x) {
    value_ = (value_ ^ x) * 0x100000001B3ull;
    value_ ^= value_ >> 32;
    return *this;
  }
  StateHash& add(const void* p) { return add(reinterpret_cast<uintptr_t>(p)); }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xCBF29CE484222325ull;
};

}  // namespace gt
