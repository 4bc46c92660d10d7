// When it is and where we run.
#pragma once
#include <string>

namespace gt {

double now();             // seconds of std::chrono::steady_clock
std::string host_name();  // "localhost" where the machine has none

}  // namespace gt
