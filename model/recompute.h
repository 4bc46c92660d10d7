// Activation recomputation in the backward.
#pragma once
#include <array>
#include <cstdint>

namespace gt {

// None; outputs of activations and norms; whole blocks. Results are bitwise identical.
enum class Recompute : uint8_t { kNone, kSelective, kFull };
constexpr std::array<const char*, 3> names_of(Recompute) { return {"none", "selective", "full"}; }

}  // namespace gt
