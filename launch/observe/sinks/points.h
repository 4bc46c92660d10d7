// Data points of one record: all tags share x and time. Unknown values (NaN) are not drawn.
#pragma once
#include <cmath>
#include <string_view>

namespace gt {

template <class Put>  // void(std::string_view tag, double y)
struct Points {
  Put put;
  void always(std::string_view tag, double y) const { put(tag, y); }  // NaN and Inf are measured values
  void known(std::string_view tag, double y) const {
    if (!std::isnan(y)) put(tag, y);
  }
};
template <class Put>
Points(Put) -> Points<Put>;

}  // namespace gt
