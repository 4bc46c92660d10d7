// Where the sources and this build lie. Functions of one object, not definitions for every file: so test objects are
// alike in all checkouts, and a compiler cache knows them again.
#pragma once
#include <string>

namespace gt {

// Without a slash at the end.
std::string source_dir();
std::string binary_dir();

}  // namespace gt
