// Options with the values auto, on and off.
#pragma once
#include <array>
#include <cstdint>

namespace gt {

enum class OnOff : uint8_t { kAuto, kOn, kOff };
constexpr std::array<const char*, 3> names_of(OnOff) { return {"auto", "on", "off"}; }

}  // namespace gt
