#include "launch/tools/report/html.h"

#include <fmt/format.h>

#include <cmath>

#include "kernels/core/text.h"
#include "launch/options/console_text.h"

namespace gt {

std::string html_text(std::string_view text) {
  std::string out;
  const std::string safe = printable_lines(text);
  for (size_t i = 0; i < safe.size(); ++i) {
    switch (safe[i]) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += safe[i];
    }
    // U+FFFE and U+FFFF are UTF-8 but no characters of XML.
    if (out.ends_with("\xef\xbf\xbe") || out.ends_with("\xef\xbf\xbf")) out.back() = '\xbd';
  }
  return out;
}

std::string to_html(const HtmlTable& t) {
  std::string out = fmt::format(
      "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\"><table{}>\n<caption>{}</caption>\n",
      html_text(t.caption), t.numbers ? " class=\"numbers\"" : "", html_text(t.caption));
  if (!t.head.empty()) {
    out += "<thead><tr>";
    for (const std::string& h : t.head) out += "<th scope=\"col\">" + html_text(h) + "</th>";
    out += "</tr></thead>\n";
  }
  out += "<tbody>\n";
  for (const std::vector<std::string>& row : t.rows) {
    out += "<tr>";
    for (size_t i = 0; i < row.size(); ++i)
      out += i == 0 ? "<th scope=\"row\">" + html_text(row[i]) + "</th>" : "<td>" + html_text(row[i]) + "</td>";
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

std::string html_details(std::string_view summary, const std::string& body) {
  return "<details><summary>" + html_text(summary) + "</summary>\n" + body + "</details>\n";
}

std::string short_number(double x) {
  if (std::isnan(x)) return "n/a";
  if (std::isinf(x)) return x > 0 ? "inf" : "-inf";
  return fmt::format("{:.4g}", x);
}

std::string percent_text(double fraction) {
  return std::isfinite(fraction) ? fmt::format("{:.1f} %", 100 * fraction) : "n/a";
}

std::string percent_tick(double fraction) {
  return std::isfinite(fraction) ? fmt::format("{:.4g} %", 100 * fraction) : "n/a";
}

std::string seconds_text(double seconds) {
  constexpr double kMost = 1e12;
  if (!std::isfinite(seconds) || std::fabs(seconds) > kMost) return "n/a";
  return seconds < 0.9995 ? fmt::format("{:.3g} ms", seconds * 1e3) : format_duration(seconds);
}

}  // namespace gt
