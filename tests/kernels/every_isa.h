// Checks on every instruction set that this processor has, and tensors for them.
#pragma once
#include <functional>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/simd/isa.h"
#include "tests/support/test.h"

namespace gt::test {

inline void on_every_isa(const std::function<void()>& check) {
  for (const CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16}) {
    try {
      set_cpu_isa(isa);
    } catch (const Error&) { break; }
    INFO(name_of(isa));
    check();
  }
  set_cpu_isa(CpuIsa::kAuto);
}

// Tensors of one call, filled with values that depend only on the order of requests.
class Tensors {
 public:
  Tensor f32(Shape s, float low = -1, float high = 1) {
    const Tensor t = raw(s, DType::kF32);
    for (int64_t i = 0; i < t.numel(); ++i) t.as<float>()[i] = low + (high - low) * next();
    return t;
  }
  Tensor ids(int64_t n, int32_t low, int32_t high) {
    const Tensor t = raw({n}, DType::kI32);
    for (int64_t i = 0; i < n; ++i) {
      t.as<int32_t>()[i] = low + static_cast<int32_t>(next() * static_cast<float>(high - low));
    }
    return t;
  }
  Tensor raw(Shape s, DType type) {
    memory_.emplace_back(static_cast<size_t>(s.numel() * size_of(type)) + 8);
    return {memory_.back().data(), s, type, {}};
  }

 private:
  float next() {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<float>(state_ >> 40) / (1 << 24);
  }
  uint64_t state_ = 7;
  std::vector<std::vector<std::byte>> memory_;
};

}  // namespace gt::test
