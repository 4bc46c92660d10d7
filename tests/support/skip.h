// A case that cannot run on this machine says why, and ctest reports it as skipped, not as passed: a process whose
// cases were all skipped ends with kSkipped (SKIP_RETURN_CODE in tests/CMakeLists.txt). tests/run.sh lists them at its end.
#pragma once
#include <string>

namespace gt {

constexpr int kSkipped = 77;

// The rest of this case is not run: prints "SKIPPED: why". To be followed by return; GT_SKIP does.
void report_skipped(const std::string& why);

// A part of this case is not run: prints "SKIPPED IN PART: why". The case passes or fails by the rest.
void report_partly_skipped(const std::string& why);

}  // namespace gt

#define GT_SKIP(why)            \
  do {                          \
    ::gt::report_skipped(why);  \
    return;                     \
  } while (false)
