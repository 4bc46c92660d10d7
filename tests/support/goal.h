// Goals that tests/nightly.sh holds in full: the same test, larger there, and one line with its figure.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/support/skip.h"

namespace gt {

// GPT_TEST_FULL=1: the full size. Else the one for every change.
inline bool full_size() { return std::getenv("GPT_TEST_FULL") != nullptr; }
inline int goal_size(int every_change, int full) { return full_size() ? full : every_change; }
inline unsigned long goal_seed() {
  const char* seed = std::getenv("GPT_TEST_SEED");
  return seed != nullptr ? std::strtoul(seed, nullptr, 10) : 20260101;
}

// "R05: 100 fills, none lost": what nightly.sh prints.
inline void print_figure(const std::string& goal, const std::string& text) {
  std::printf("%s: %s\n", goal.c_str(), text.c_str());
  std::fflush(stdout);
}

// A goal that cannot be tried here: the case is reported as skipped.
inline void print_skip(const std::string& goal, const std::string& why) {
  print_figure(goal, "SKIP " + why);
  report_skipped(goal + ": " + why);
}

}  // namespace gt
