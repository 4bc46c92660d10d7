// Clock and host name.
#pragma once
#include <string>

namespace gt {

double now();             // seconds of std::chrono::steady_clock
std::string host_name();  // "localhost" when the machine has no name

}  // namespace gt
