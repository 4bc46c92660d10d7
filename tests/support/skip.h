// Skipping with a reason: a case that cannot run on this machine is reported by ctest as skipped, not passed. A process
// whose cases were all skipped exits with kSkipped (SKIP_RETURN_CODE in tests/CMakeLists.txt). tests/run.sh lists them
// at its end.
#pragma once
#include <string>

namespace gt {

constexpr int kSkipped = 77;

// Prints "SKIPPED: why" for the rest of this case. Must be followed by return; GT_SKIP does both.
void report_skipped(const std::string& why);

// Prints "SKIPPED IN PART: why". The rest of the case decides whether it passes.
void report_partly_skipped(const std::string& why);

}  // namespace gt

#define GT_SKIP(why)           \
  do {                         \
    ::gt::report_skipped(why); \
    return;                    \
  } while (false)
