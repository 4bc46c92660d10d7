// Goals that tests/nightly.sh runs at full size: the same test, larger there, with one line for its figure.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/support/skip.h"

namespace gt {

// GPT_TEST_FULL=1 selects the full size, otherwise the size for every change.
inline bool full_size() { return std::getenv("GPT_TEST_FULL") != nullptr; }
inline int goal_size(int every_change, int full) { return full_size() ? full : every_change; }
// GPT_TEST_SEED, or a fixed default.
inline unsigned long goal_seed() {
  const char* seed = std::getenv("GPT_TEST_SEED");
  return seed != nullptr ? std::strtoul(seed, nullptr, 10) : 20260101;
}

// Prints e.g. "R05: 100 fills, none lost", which nightly.sh reports.
inline void print_figure(const std::string& goal, const std::string& text) {
  std::printf("%s: %s\n", goal.c_str(), text.c_str());
  std::fflush(stdout);
}

// Reports the case as skipped: the goal cannot be tested here.
inline void print_skip(const std::string& goal, const std::string& why) {
  print_figure(goal, "SKIP " + why);
  report_skipped(goal + ": " + why);
}

}  // namespace gt
