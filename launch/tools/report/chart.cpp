#include "launch/tools/report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "launch/options/console_text.h"

namespace gt {
namespace {

// Size and margins of every figure, in SVG user units; the page scales it to its column.
constexpr double kWidth = 480, kWide = 1000, kHeight = 250, kLeft = 58, kRight = 12, kTop = 12, kBottom = 40;
constexpr double kRowHeight = 24, kInnerWidth = kWidth - kLeft - kRight;
constexpr size_t kReadings = 40, kWideReadings = 100;  // places of a curve whose values a pointer shows

// Maps values to user units.
struct AxisScale {
  double from = 0, to = 1, begin = 0, end = 1;
  bool logarithmic = false;
  double operator()(double v) const {
    const double a = logarithmic ? std::log10(from) : from, b = logarithmic ? std::log10(to) : to;
    const double t = logarithmic ? std::log10(v) : v;
    return begin + (t - a) / (b - a) * (end - begin);
  }
};

// Multiples of 1, 2 or 5 times a power of ten within the range, or powers of ten.
std::vector<double> ticks(const AxisScale& s, int most) {
  std::vector<double> out;
  if (s.logarithmic) {
    // Powers of ten; with 2 and 5 times them, or of every few, so that there are some but not too many.
    const int first = static_cast<int>(std::floor(std::log10(s.from))), last = static_cast<int>(std::log10(s.to) + 1);
    const int stride = std::max(1, (last - first) / most);
    for (int k = first; k <= last; k += stride)
      for (const double factor : {1., 2., 5.})
        if (const double t = factor * std::pow(10., k); t >= s.from && t <= s.to && (factor == 1 || last - first <= 3))
          out.push_back(t);
    return out;
  }
  const double range = s.to - s.from;
  if (!(range > 0) || !std::isfinite(range)) return out;
  const double rough = range / most, power = std::pow(10, std::floor(std::log10(rough)));
  double unit = power;
  for (const double factor : {1., 2., 5., 10.})
    if (factor * power >= rough) {
      unit = factor * power;
      break;
    }
  const double first = std::ceil(s.from / unit - 1e-9);
  for (int i = 0; i <= most; ++i)  // counts, because at extreme values a sum may not change
    if (const double t = (first + i) * unit; t <= s.to + 1e-9 * range) out.push_back(t == 0 ? 0 : t);
  return out;
}

std::string color_class(int color) {
  return fmt::format("c{}{}", color % kColors, color >= kColors ? fmt::format(" d{}", color / kColors % 3) : "");
}

std::string svg_begin(const std::string& id, const std::string& title, const std::string& description, double height,
                      double width = kWidth) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:g} {:g}\" role=\"img\" aria-labelledby=\"{}-t "
      "{}-d\">\n<title id=\"{}-t\">{}</title>\n<desc id=\"{}-d\">{}</desc>\n",
      width, height, id, id, id, html_text(title), id, html_text(description));
}

std::string figure(const std::string& title, const std::string& legend, const std::string& svg, const HtmlTable& table,
                   const char* classes = "") {
  return fmt::format("<figure{}>\n<figcaption>", *classes ? fmt::format(" class=\"{}\"", classes) : "") +
         html_text(title) + "</figcaption>\n" + legend + svg + html_details("Values", to_html(table)) + "</figure>\n";
}

std::string legend_item(const std::string& swatch, const std::string& name) {
  return "<li><svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 22 10\" aria-hidden=\"true\">" + swatch +
         "</svg>" + html_text(name) + "</li>";
}

std::string box_legend(const std::vector<std::string>& names) {
  std::string out = "<ul class=\"legend\">";
  for (size_t i = 0; i < names.size(); ++i)
    out +=
        legend_item(fmt::format("<rect class=\"b c{}\" x=\"4\" width=\"14\" height=\"10\"/>", i % kColors), names[i]);
  return out + "</ul>\n";
}

std::string text_at(double x, double y, const char* anchor, const std::string& text, const char* more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>", x, y, anchor, more,
                     html_text(text));
}

std::string x_axis(const AxisScale& x, double bottom, const std::string& label,
                   const std::function<std::string(double)>& text, double width = kWidth) {
  std::string out = fmt::format("<path class=\"axis\" d=\"M{:g} {:g}H{:g}\"/>", kLeft, bottom, width - kRight);
  for (const double t : ticks(x, width > kWidth ? 10 : 5)) {
    const double at = x(t);
    out += fmt::format("<path class=\"axis\" d=\"M{:.1f} {:g}v4\"/>", at, bottom);
    const bool at_end = at > width - kRight - 16;
    out += text_at(at_end ? width - 2 : at, bottom + 16, at_end ? "end" : "middle", text(t));
  }
  if (!label.empty()) out += text_at(kLeft + (width - kLeft - kRight) / 2, bottom + 32, "middle", label);
  return out + "\n";
}

std::string y_axis(const AxisScale& y, const std::function<std::string(double)>& label, double width = kWidth) {
  std::string out;
  for (const double t : ticks(y, 5))
    out += fmt::format("<path class=\"grid\" d=\"M{:g} {:.1f}H{:g}\"/>", kLeft, y(t), width - kRight) +
           text_at(kLeft - 6, y(t) + 4, "end", label(t));
  return out + "\n";
}

// Index of the last x at or before `at`; none: x.size().
size_t index_at(const Series& s, double at) {
  const auto after = std::upper_bound(s.x.begin(), s.x.end(), at);
  return after == s.x.begin() ? s.x.size() : static_cast<size_t>(after - s.x.begin()) - 1;
}

// Strips over the whole height whose titles are the values there: browsers show them at the pointer, without a script.
std::string readings(const LineChart& c, const AxisScale& x, size_t most) {
  double xs = 0;
  for (const Series& s : c.series) xs = std::max(xs, static_cast<double>(s.x.size()));
  const auto strips = static_cast<size_t>(std::min(static_cast<double>(most), xs));
  if (strips < 2) return "";
  std::string out = "<g class=\"r\">";
  const double step = (x.to - x.from) / static_cast<double>(strips),
               width = (x.end - x.begin) / static_cast<double>(strips);
  for (size_t k = 0; k < strips; ++k) {
    std::string text;
    for (const Series& s : c.series) {
      const size_t i = index_at(s, x.from + (static_cast<double>(k) + 0.5) * step);
      if (i >= s.x.size() || !std::isfinite(s.y[i])) continue;
      text += fmt::format("{}{} {:.15g}: {}{}", text.empty() ? "" : "; ", c.x_label, s.x[i],
                          c.series.size() > 1 ? s.name + " " : "", c.label(s.y[i]));
    }
    if (text.empty()) continue;
    out +=
        fmt::format("<rect x=\"{:.1f}\" y=\"{:g}\" width=\"{:.1f}\" height=\"{:g}\"><title>{}</title></rect>",
                    x.begin + static_cast<double>(k) * width, kTop, width, kHeight - kTop - kBottom, html_text(text));
  }
  return out + "</g>\n";
}

std::string line_of(const Series& s, const AxisScale& x, const AxisScale& y) {
  std::string d, dots;
  bool pen = false;
  for (size_t i = 0; i < s.x.size(); ++i) {
    if (!std::isfinite(s.y[i]) || (y.logarithmic && s.y[i] <= 0)) {
      pen = false;
      continue;
    }
    const double px = x(s.x[i]), py = y(s.y[i]);
    fmt::format_to(std::back_inserter(d), "{}{:.1f} {:.1f}", pen ? "L" : "M", px, py);
    if (s.mark == Mark::kPoints)
      fmt::format_to(std::back_inserter(dots), "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"/>", px, py);
    pen = true;
  }
  if (d.empty()) return "";
  if (d.find('L') == std::string::npos) d += "h0.01";  // a lone point shows by its round cap
  const std::string color = color_class(s.color);
  std::string out = fmt::format("<path class=\"{} {}\" d=\"{}\"/>", s.mark == Mark::kFaintLine ? "f" : "l", color, d);
  if (!dots.empty()) out += fmt::format("<g class=\"p {}\">{}</g>", color, dots);
  return out + "\n";
}

// Values at up to `most` x of all series.
HtmlTable values_of(const LineChart& c, size_t most) {
  HtmlTable t{.caption = c.title + ": values", .head = {c.x_label.empty() ? "x" : c.x_label}, .numbers = true};
  std::vector<double> all;
  for (const Series& s : c.series) {
    t.head.push_back(s.name);
    const size_t n = s.x.size(), rows = std::min(n, most);
    for (size_t k = 0; k < rows; ++k) all.push_back(s.x[rows == 1 ? n - 1 : k * (n - 1) / (rows - 1)]);
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  for (const double x : all) {
    t.rows.push_back({fmt::format("{:.15g}", x)});
    for (const Series& s : c.series) {
      const auto at = std::lower_bound(s.x.begin(), s.x.end(), x);
      const bool has = at != s.x.end() && *at == x;
      t.rows.back().push_back(has ? c.label(s.y[static_cast<size_t>(at - s.x.begin())]) : "");
    }
  }
  return t;
}

std::string line_legend(const LineChart& c) {
  if (c.series.size() < 2) return "";
  std::string out = "<ul class=\"legend\">";
  for (const Series& s : c.series) {
    const std::string color = color_class(s.color);
    const char* line = s.mark == Mark::kFaintLine ? "f" : "l";
    std::string swatch = fmt::format("<path class=\"{} {}\" d=\"M1 5H21\"/>", line, color);
    if (s.mark == Mark::kPoints)
      swatch += fmt::format("<g class=\"p {}\"><circle cx=\"11\" cy=\"5\" r=\"3\"/></g>", color);
    out += legend_item(swatch, s.name);
  }
  return out + "</ul>\n";
}

struct Extent {
  double low = INFINITY, high = -INFINITY;
  void add(double v) {
    if (std::isfinite(v)) low = std::min(low, v), high = std::max(high, v);
  }
  bool empty() const { return low > high; }
};

std::string step_text(double x) { return std::fabs(x) < 1e4 ? fmt::format("{:g}", x) : format_count(x); }

}  // namespace

std::string to_html(const LineChart& chart) {
  Extent xs, ys;
  for (const Series& s : chart.series)
    for (size_t i = 0; i < s.x.size(); ++i) {
      if (std::isfinite(s.y[i])) xs.add(s.x[i]);
      ys.add(s.y[i]);
    }
  if (xs.empty()) return "";
  if (xs.low == xs.high) xs.low -= 1, xs.high += 1;
  const bool logarithmic = chart.logarithmic && ys.low > 0 && ys.high > 30 * ys.low;
  if (chart.zero && !logarithmic) ys.low = std::min(0., ys.low), ys.high = std::max(0., ys.high);
  if (ys.low == ys.high) {
    const double margin = ys.low == 0 ? 1 : 0.1 * std::fabs(ys.low);
    ys.low -= chart.zero ? 0 : margin, ys.high += margin;
  }
  if (!logarithmic) {
    const double margin = 0.04 * (ys.high - ys.low);
    ys.high += margin;
    if (!chart.zero || ys.low < 0) ys.low -= margin;
  }
  const double width = chart.wide ? kWide : kWidth;
  const AxisScale x{xs.low, xs.high, kLeft, width - kRight}, y{ys.low, ys.high, kHeight - kBottom, kTop, logarithmic};
  std::string svg = svg_begin(chart.id, chart.title, chart.description, kHeight, width);
  svg += y_axis(y, chart.tick ? chart.tick : chart.label, width) +
         x_axis(x, kHeight - kBottom, chart.x_label, step_text, width);
  for (Series s : chart.series) {
    downsample(s.x, s.y, chart.points);
    svg += line_of(s, x, y);
  }
  svg += readings(chart, x, chart.wide ? kWideReadings : kReadings);
  const std::string unit = (chart.unit.empty() ? "" : ", " + chart.unit) + (logarithmic ? ", logarithmic" : "");
  return figure(chart.title + unit, line_legend(chart), svg + "</svg>\n", values_of(chart, 12),
                chart.wide ? "wide curve" : "");
}

std::string to_html(const StackedBars& chart) {
  double most = 0;
  for (const auto& bar : chart.bars) {
    double sum = 0;
    for (const double v : bar.values) sum += v;
    most = std::max(most, sum);
  }
  if (most <= 0 || !std::isfinite(most)) return "";
  // Names stand above their bars, so that long ones fit on narrow screens.
  const double row = kRowHeight + 16, height = row * static_cast<double>(chart.bars.size()) + 10;
  const AxisScale x{0, most, 4, kWidth - 84};
  std::string svg = svg_begin(chart.id, chart.title, chart.description, height);
  HtmlTable table{.caption = chart.title + ": values", .head = {""}, .numbers = true};
  table.head.insert(table.head.end(), chart.parts.begin(), chart.parts.end());
  table.head.emplace_back("total");
  double top = 4;
  for (const auto& bar : chart.bars) {
    svg += text_at(4, top + 11, "start", bar.name);
    table.rows.push_back({bar.name});
    double sum = 0;
    for (size_t i = 0; i < bar.values.size(); ++i) {
      table.rows.back().push_back(chart.label(bar.values[i]));
      const double begin = x(sum), end = x(sum += bar.values[i]);
      if (end - begin >= 0.2)
        svg += fmt::format("<rect class=\"b c{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"18\"/>",
                           i % kColors, begin, top + 16, end - begin);
    }
    table.rows.back().push_back(chart.label(sum));
    svg += text_at(x(sum) + 6, top + 30, "start", chart.label(sum)) + "\n";
    top += row;
  }
  return figure(chart.title, box_legend(chart.parts), svg + "</svg>\n", table);
}

std::string to_html(const StackedArea& chart) {
  constexpr size_t kMostBuckets = 120;
  const size_t n = chart.x.size(), buckets = std::min(n, kMostBuckets);
  if (n == 0) return "";
  std::vector<double> x(buckets);
  std::vector<std::vector<double>> tops(chart.parts.size() + 1, std::vector<double>(buckets, 0));
  HtmlTable table{.caption = chart.title + ": means", .head = {chart.x_label}, .numbers = true};
  table.head.insert(table.head.end(), chart.parts.begin(), chart.parts.end());
  double most = 0;
  for (size_t k = 0; k < buckets; ++k) {
    const size_t begin = k * n / buckets, end = (k + 1) * n / buckets;
    x[k] = chart.x[(begin + end) / 2];
    const bool listed = k % std::max<size_t>(1, buckets / 10) == 0;
    if (listed) table.rows.push_back({step_text(x[k])});
    for (size_t p = 0; p < chart.parts.size(); ++p) {
      double sum = 0;
      for (size_t i = begin; i < end; ++i) sum += std::max(0., chart.values[p][i]);
      const double mean = sum / static_cast<double>(end - begin);
      tops[p + 1][k] = tops[p][k] + mean;
      if (listed) table.rows.back().push_back(chart.label(mean));
    }
    most = std::max(most, tops.back()[k]);
  }
  if (most <= 0 || !std::isfinite(most)) return "";
  const double low = x.front(), high = buckets > 1 ? x.back() : x.front() + 1;
  const AxisScale sx{low, high, kLeft, kWidth - kRight}, sy{0, 1.04 * most, kHeight - kBottom, kTop};
  std::string svg = svg_begin(chart.id, chart.title, chart.description, kHeight) + y_axis(sy, chart.label);
  for (size_t p = 0; p < chart.parts.size(); ++p) {
    std::string d;
    const auto point = [&](size_t k, double v) {
      fmt::format_to(std::back_inserter(d), "{}{:.1f} {:.1f}", d.empty() ? "M" : "L", sx(x[k]), sy(v));
    };
    for (size_t k = 0; k < buckets; ++k) point(k, tops[p + 1][k]);
    if (buckets == 1) fmt::format_to(std::back_inserter(d), "H{:g}", kWidth - kRight);
    if (buckets == 1) fmt::format_to(std::back_inserter(d), "V{:.1f}", sy(tops[p][0]));
    for (size_t k = buckets; k-- > 0;) point(k, tops[p][k]);
    svg += fmt::format("<path class=\"b c{}\" d=\"{}Z\"/>\n", p % kColors, d);
  }
  svg += x_axis(sx, kHeight - kBottom, chart.x_label, step_text);
  return figure(chart.title, box_legend(chart.parts), svg + "</svg>\n", table);
}

std::string to_html(const TimelineChart& chart) {
  Extent time;
  for (const auto& box : chart.boxes) time.add(box.begin), time.add(box.end);
  if (time.empty() || time.low == time.high || chart.rows.empty()) return "";
  const double length = time.high - time.low, bottom = kRowHeight * static_cast<double>(chart.rows.size()) + 8;
  const AxisScale x{0, length, kLeft, kWidth - kRight};
  std::string svg = svg_begin(chart.id, chart.title, chart.description, bottom + kBottom);
  std::vector<std::vector<double>> busy(chart.rows.size(), std::vector<double>(chart.kinds.size(), 0));
  for (size_t r = 0; r < chart.rows.size(); ++r) {
    const double top = 6 + kRowHeight * static_cast<double>(r);
    svg += text_at(kLeft - 6, top + 14, "end", chart.rows[r]);
    svg += fmt::format("<rect class=\"track\" x=\"{:g}\" y=\"{:g}\" width=\"{:g}\" height=\"18\"/>\n", kLeft, top,
                       kInnerWidth);
  }
  size_t drawn = 0;
  for (const auto& box : chart.boxes) {
    busy[box.row][box.kind] += box.end - box.begin;
    if (++drawn > chart.most_boxes) continue;
    const double begin = x(box.begin - time.low), width = x(box.end - time.low) - begin;
    const double top = 6 + kRowHeight * static_cast<double>(box.row);
    fmt::format_to(std::back_inserter(svg),
                   "<rect class=\"b c{}\" x=\"{:.1f}\" y=\"{:g}\" width=\"{:.1f}\" height=\"18\"/>", box.kind % kColors,
                   begin, top, std::max(width, 0.3));
    if (!box.text.empty() && width > 5 + 7.5 * static_cast<double>(box.text.size()))
      svg += text_at(begin + width / 2, top + 13.5, "middle", box.text, " class=\"on\"");
  }
  svg += "\n" + x_axis(x, bottom, "time since the begin of the step", seconds_text);
  HtmlTable table{.caption = chart.title + ": share of the time shown", .head = {""}, .numbers = true};
  table.head.insert(table.head.end(), chart.kinds.begin(), chart.kinds.end());
  for (size_t r = 0; r < chart.rows.size(); ++r) {
    table.rows.push_back({chart.rows[r]});
    for (const double seconds : busy[r]) table.rows.back().push_back(percent_text(seconds / length));
  }
  return figure(chart.title, box_legend(chart.kinds), svg + "</svg>\n", table, "wide");
}

void downsample(std::vector<double>& x, std::vector<double>& y, size_t most) {
  if (x.size() <= std::max<size_t>(most, 4)) return;
  const size_t n = x.size(), buckets = std::max<size_t>(most / 2, 2);
  std::vector<double> out_x, out_y;
  for (size_t b = 0; b < buckets; ++b) {
    const size_t begin = b * n / buckets, end = (b + 1) * n / buckets;
    size_t low = end, high = end;
    for (size_t i = begin; i < end; ++i) {
      if (!std::isfinite(y[i])) continue;
      if (low == end || y[i] < y[low]) low = i;
      if (high == end || y[i] > y[high]) high = i;
    }
    if (low == end) continue;
    for (const size_t i : {std::min(low, high), std::max(low, high)})
      if (out_x.empty() || out_x.back() != x[i]) out_x.push_back(x[i]), out_y.push_back(y[i]);
  }
  x = std::move(out_x);
  y = std::move(out_y);
}

std::vector<double> smoothed(const std::vector<double>& y, double span) {
  const double keep = 1 - 1 / std::max(span / 2, 1.);
  const size_t n = y.size();
  std::vector<double> sums(n, 0), weights(n, 0), out(n, std::numeric_limits<double>::quiet_NaN());
  double sum = 0, weight = 0;
  for (size_t i = 0; i < n; ++i) {  // what precedes each point, itself included
    const bool known = std::isfinite(y[i]);
    sum = keep * sum + (known ? y[i] : 0), weight = keep * weight + (known ? 1 : 0);
    sums[i] = sum, weights[i] = weight;
  }
  sum = weight = 0;
  for (size_t i = n; i-- > 0;) {  // what follows it
    sum *= keep, weight *= keep;
    if (!std::isfinite(y[i])) continue;
    out[i] = (sums[i] + sum) / (weights[i] + weight);
    sum += y[i], weight += 1;
  }
  return out;
}

}  // namespace gt
