// Text for terminals: quantities with units, label/value blocks, terminal width.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gt {

// Formats a duration as "26m04s", "832 ms", "3h12m" or "2d04h"; NaN as "n/a".
std::string format_duration(double seconds);
// Formats a count with three significant digits: "12.3k", "1.25M", "950".
std::string format_count(double x);
// Formats bytes in decimal units: "1.9 GB", "512 B".
std::string format_bytes(double bytes);
std::string format_thousands(int64_t x);  // 204,800

using Rows = std::vector<std::pair<std::string, std::string>>;  // one console block as (label, value)
// Aligns labels and values in two columns; continuation lines of a value stay in the value column.
std::string block(const Rows& rows);

int terminal_width();  // columns of standard output; 0 if it is not a terminal

}  // namespace gt
