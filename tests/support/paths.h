// Source and build folders. Functions in one object file rather than definitions for every file: test objects are
// identical in all checkouts, so that a compiler cache hits.
#pragma once
#include <string>

namespace gt {

// Without a trailing slash.
std::string source_dir();
std::string binary_dir();

}  // namespace gt
