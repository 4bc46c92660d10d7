// Closed forms against which schedules, simulator and executor are tested.
#pragma once
#include <algorithm>
#include <string>

namespace gt {

// A schedule by name, with v chunks per rank.
struct NamedSchedule {
  const char* name;
  int v;
};

constexpr NamedSchedule kNamedSchedules[] = {{"gpipe", 1},       {"1f1b", 1},        {"zb-h1", 1},
                                             {"interleaved", 1}, {"interleaved", 2}, {"interleaved", 3},
                                             {"interleaved", 4}};

// Peak of live activations on rank r, in chunks.
inline int most_in_flight(const std::string& name, int p, int v, int m, int r) {
  if (name == "gpipe") return m;
  if (name == "1f1b") return std::min(p - r, m);
  if (name == "zb-h1") return std::min(p, m);
  const int group = m <= p ? m : p + m % p;
  return std::min(2 * (p - 1 - r) + (v - 1) * group + 1, m * v);
}

}  // namespace gt
