// Axes of the rank mesh (parallel/mesh.h) and a rank's place on them, as data.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace gt {

enum class Axis : uint8_t { kPp, kDp, kExpertDp, kEp, kCp, kTp, kEtp };
constexpr size_t kNumAxes = 7;

struct AxisPosition {
  int rank = 0, size = 1;
};

// Coordinates of a rank, and the sizes of the axes.
struct RankCoordinates {
  std::array<AxisPosition, kNumAxes> on_axis;
  constexpr RankCoordinates() = default;
  constexpr explicit RankCoordinates(AxisPosition tp) { (*this)[Axis::kTp] = tp; }
  constexpr AxisPosition& operator[](Axis a) { return on_axis[static_cast<size_t>(a)]; }
  constexpr const AxisPosition& operator[](Axis a) const { return on_axis[static_cast<size_t>(a)]; }
};

}  // namespace gt
