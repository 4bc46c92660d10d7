// Figures as inline SVG: line charts, stacked bars, stacked areas, timelines. Colors are CSS classes c0 to c7, so that
// one picture serves light and dark pages. Each figure has a title, a description and a table of its values for readers
// who do not see it.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "launch/tools/report/html.h"

namespace gt {

constexpr int kColors = 8;

enum class Mark { kLine, kFaintLine, kPoints };

struct Series {
  std::string name;
  int color = 0;  // modulo kColors; runs beyond that differ in dashes too
  Mark mark = Mark::kLine;
  std::vector<double> x, y;  // x ascending; NaN and infinite y are gaps
};

struct LineChart {
  std::string id, title, description, x_label, unit;  // id: unique in the page
  std::vector<Series> series;
  bool zero = false;         // the y-axis begins at 0
  bool wide = false;         // as wide as the page
  bool logarithmic = false;  // if all values are positive and span more than a factor of 30
  std::function<std::string(double)> label = short_number;  // of y values
  std::function<std::string(double)> tick = {};             // of the y-axis; empty: label
  size_t points = 600;                                      // drawn for each series at most
};
std::string to_html(const LineChart&);

// Rows of bars, each the sum of its parts.
struct StackedBars {
  std::string id, title, description;
  std::vector<std::string> parts;  // names; colors in this order
  struct Bar {
    std::string name;
    std::vector<double> values;  // by part, not negative
  };
  std::vector<Bar> bars;
  std::function<std::string(double)> label = short_number;
};
std::string to_html(const StackedBars&);

// Means over buckets of x, stacked.
struct StackedArea {
  std::string id, title, description, x_label;
  std::vector<std::string> parts;
  std::vector<double> x;
  std::vector<std::vector<double>> values;  // [part][x], not negative
  std::function<std::string(double)> label = short_number;
};
std::string to_html(const StackedArea&);

// Boxes in rows over time.
struct TimelineChart {
  std::string id, title, description;
  std::vector<std::string> kinds;  // names; colors in this order
  struct Box {
    size_t row = 0, kind = 0;
    double begin = 0, end = 0;  // seconds
    std::string text;           // drawn where it fits
  };
  std::vector<std::string> rows;
  std::vector<Box> boxes;
  size_t most_boxes = 4000;
};
std::string to_html(const TimelineChart&);

// At most `most` points of a curve: the least and the greatest of each of most / 2 buckets, so that spikes stay. Gaps
// (NaN, infinities) are left out.
void downsample(std::vector<double>& x, std::vector<double>& y, size_t most);

// Mean with weights that fall exponentially on both sides of each point, over about `span` points: no lag. Gaps stay
// gaps.
std::vector<double> smoothed(const std::vector<double>& y, double span);

}  // namespace gt
