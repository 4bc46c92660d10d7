// Text for a terminal: quantities with units, blocks of labels and values, the width of what is written to.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gt {

// "26m04s", "832 ms", "3h12m", "2d04h"; n/a for a NaN.
std::string format_duration(double seconds);
// "12.3k", "1.25M", "950": three digits that count.
std::string format_count(double x);
// "1.9 GB", "512 B": decimal units.
std::string format_bytes(double bytes);
std::string format_thousands(int64_t x);  // 204,800

using Rows = std::vector<std::pair<std::string, std::string>>;  // label, value: a block on the console
// Labels in a column, values beside them; values of several lines stay in their column.
std::string block(const Rows& rows);

int terminal_width();  // columns of standard output, 0 when it is no terminal

}  // namespace gt
