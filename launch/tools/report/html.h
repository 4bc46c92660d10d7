// Pieces of an HTML page that is also well-formed XML: escaped text, tables, labels of numbers.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace gt {

// Text of a page or of an attribute in double quotes. Control characters, bidirectional marks and bytes that are not
// UTF-8 become visible escapes.
std::string html_text(std::string_view text);

struct HtmlTable {
  std::string caption;
  std::vector<std::string> head;               // column headers; empty: none
  std::vector<std::vector<std::string>> rows;  // plain text; the first cell is the row's header
  bool numbers = false;                        // cells other than row headers are right-aligned
};
// A table that scrolls sideways on narrow screens, by keyboard too.
std::string to_html(const HtmlTable&);

// `body` behind a disclosure triangle.
std::string html_details(std::string_view summary, const std::string& body);

// Four significant digits: "0.003124", "12.35", "1.235e+06"; "n/a" for NaN, "inf".
std::string short_number(double x);
std::string percent_text(double fraction);  // "12.3 %"; "n/a"
std::string percent_tick(double fraction);  // "12.3 %", "80 %"
std::string seconds_text(double seconds);   // "0.53 ms", "12.4 ms", "1.5 s", "2m05s"; "n/a"

}  // namespace gt
