// The only include of the test framework: moving to Catch2 version 3 is a change here.
#pragma once
#include <catch2/catch.hpp>

namespace gt {

// Sanitized code is about ten times slower. There, tests that only vary sizes run fewer of them, and timing tests check
// counts but not durations.
#ifdef GPT_SANITIZED
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

}  // namespace gt
