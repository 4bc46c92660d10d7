// The one place that names the test framework's header: moving to Catch2 version 3 is a change here.
#pragma once
#include <catch2/catch.hpp>

namespace gt {

// Sanitized code is some ten times slower. A test whose cases only vary sizes takes fewer of them there, and one that
// measures time judges what it counts but not how long it took.
#ifdef GPT_SANITIZED
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

}  // namespace gt
