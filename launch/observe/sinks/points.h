// The points of one record: every tag at the same x and time. What is not known (NaN) draws no point.
#pragma once
#include <cmath>
#include <string_view>

namespace gt {

template <class Put>  // void(std::string_view tag, double y)
struct Points {
  Put put;
  void always(std::string_view tag, double y) const { put(tag, y); }  // NaN and Inf as they are: they happened
  void known(std::string_view tag, double y) const {
    if (!std::isnan(y)) put(tag, y);
  }
};
template <class Put>
Points(Put) -> Points<Put>;

}  // namespace gt
