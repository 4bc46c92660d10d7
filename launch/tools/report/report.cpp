#include "launch/tools/report/report.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "kernels/core/check.h"
#include "launch/options/version.h"
#include "launch/ranks/run_file.h"
#include "launch/tools/report/figures.h"
#include "launch/tools/report/html.h"
#include "launch/tools/report/run_summary.h"

namespace gt {
namespace {

// Contrast of text at least 7:1, of lines and boxes 3:1, in both themes.
constexpr const char* kStyle = R"(
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--soft:#4a525b;--line:#c9d1d9;--card:#f6f8fa;--link:#0b4f9e;--on:#fff;
--k0:#0b62a8;--k1:#b45309;--k2:#0f7b4f;--k3:#a3247b;--k4:#0e7490;--k5:#7c3aed;--k6:#b91c1c;--k7:#6b7280}
@media (prefers-color-scheme:dark){:root{--bg:#14171a;--fg:#e8ebee;--soft:#b4bcc5;--line:#3b434c;--card:#1c2126;--link:#8ec2ff;
--on:#101315;--k0:#6cb6ff;--k1:#f0a04b;--k2:#57c38a;--k3:#e78ac3;--k4:#5cc8d7;--k5:#b79cff;--k6:#ff8f8f;--k7:#9aa4af}}
*{box-sizing:border-box}
body{margin:0 auto;padding:0 1rem 3rem;max-width:84rem;background:var(--bg);color:var(--fg);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}
h1{font-size:1.6rem;margin:1.2rem 0 .2rem;overflow-wrap:anywhere}h2{font-size:1.25rem;margin:2rem 0 .6rem}
h3{font-size:1.05rem;margin:1.4rem 0 .4rem;overflow-wrap:anywhere}
p{margin:.3rem 0;overflow-wrap:anywhere}.soft{color:var(--soft)}
a{color:var(--link)}a:focus-visible,summary:focus-visible,.scroll:focus-visible{outline:3px solid var(--link);outline-offset:2px}
.skip{position:absolute;left:-999px}.skip:focus{left:1rem;top:.5rem;background:var(--bg);padding:.3rem .6rem}
nav ul,.legend{list-style:none;margin:.4rem 0;padding:0;display:flex;flex-wrap:wrap;gap:.2rem 1rem}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.6rem;margin:1rem 0;padding:0}
.tiles div{background:var(--card);border:1px solid var(--line);border-radius:.4rem;padding:.5rem .7rem}
.tiles dt{color:var(--soft);font-size:.85rem}.tiles dd{margin:0;font-size:1.2rem;font-weight:600;overflow-wrap:anywhere}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,25rem),1fr));gap:1rem;align-items:start}
figure{margin:0;padding:.7rem;border:1px solid var(--line);border-radius:.4rem;background:var(--card);min-width:0}
figcaption{font-weight:600}figure>svg{display:block;width:100%;height:auto}
.legend{font-size:.85rem}.legend li{display:flex;align-items:center;gap:.35rem}.legend svg{width:22px;height:10px;flex:none}
svg text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif;fill:var(--soft)}svg text.on{fill:var(--on);font-size:11px}
.grid{stroke:var(--line);stroke-width:1}.axis{stroke:var(--soft);stroke-width:1}.track{fill:var(--line);opacity:.5}
.l,.f{fill:none;stroke:var(--k);stroke-linejoin:round;stroke-linecap:round}.l{stroke-width:2}.f{stroke-width:1;opacity:.45}
.b{fill:var(--k);stroke:var(--card);stroke-width:.6}.p{fill:var(--k);stroke:var(--card)}
.c0{--k:var(--k0)}.c1{--k:var(--k1)}.c2{--k:var(--k2)}.c3{--k:var(--k3)}.c4{--k:var(--k4)}.c5{--k:var(--k5)}.c6{--k:var(--k6)}.c7{--k:var(--k7)}
.d1{stroke-dasharray:6 3}.d2{stroke-dasharray:2 3}
.scroll{overflow-x:auto;max-width:100%;margin:.5rem 0}table{border-collapse:collapse;font-size:.9rem}
caption{text-align:left;font-weight:600;padding:.2rem 0}th,td{border-bottom:1px solid var(--line);padding:.25rem .8rem .25rem 0;
text-align:left;vertical-align:top;white-space:pre-line}tbody th{font-weight:500}td{overflow-wrap:anywhere;min-width:4rem}
.numbers td,.numbers th[scope=col]:not(:first-child){text-align:right;font-variant-numeric:tabular-nums;padding-left:.8rem}
.wide{grid-column:1/-1}.curve{overflow-x:auto}.curve>svg{min-width:38rem}.r rect{fill:transparent}
.r rect:hover{fill:var(--line);opacity:.4}
.numbers td{white-space:nowrap}
details{margin:.4rem 0}summary{cursor:pointer;color:var(--link)}footer{margin-top:2rem;color:var(--soft);font-size:.85rem}
@media print{body{max-width:none}figure{break-inside:avoid}}
)";

std::string section(const std::string& id, const std::string& title, const std::string& body) {
  if (body.empty()) return "";
  return fmt::format("<section aria-labelledby=\"h-{}\">\n<h2 id=\"h-{}\">{}</h2>\n{}</section>\n", id, id,
                     html_text(title), body);
}

std::string figures(const std::string& body) {
  return body.empty() ? "" : "<div class=\"figures\">\n" + body + "</div>\n";
}

// The figures that readers need first.
std::string tiles(const RunSummary& s) {
  std::string out = "<dl class=\"tiles\">\n";
  const auto add = [&](const char* name, const std::string& value) {
    if (value != "n/a") out += "<div><dt>" + html_text(name) + "</dt><dd>" + html_text(value) + "</dd></div>\n";
  };
  const auto loss = [](double x) { return std::isfinite(x) ? fmt::format("{:.4f}", x) : short_number(x); };
  add("steps", fmt::format("{} of {}", s.steps, s.total_steps));
  add("last loss", loss(s.last_loss));
  add("best evaluation loss", loss(s.best_eval));
  add("tokens/s, median", std::isnan(s.tokens_per_second) ? "n/a" : format_count(s.tokens_per_second));
  add("step time, median", seconds_text(s.step_seconds));
  add("MFU, median", percent_text(s.mfu));
  if (std::isnan(s.mfu)) add("of measured peak", percent_text(s.of_ceiling));
  add("goodput", percent_text(s.goodput));
  add("memory, largest rank", std::isnan(s.measured_bytes) ? "n/a" : format_bytes(s.measured_bytes));
  add("skipped steps", std::to_string(s.skipped));
  return out + "</dl>\n";
}

std::string comparison(const Runs& runs) {
  std::vector<RunSummary> summaries;
  HtmlTable t{.caption = "Runs beside each other", .head = {""}, .numbers = true};
  for (const RunLog* log : runs) {
    summaries.push_back(summarize(*log));
    t.head.push_back(summaries.back().name);
  }
  for (SummaryRow& row : summary_rows(summaries)) {
    row.values.insert(row.values.begin(), row.name);
    t.rows.push_back(std::move(row.values));
  }
  std::string out = to_html(t);
  if (runs.size() < 2) return out;
  HtmlTable config{.caption = "Differences of configuration", .head = t.head};
  for (SummaryRow& row : config_differences(runs)) {
    row.values.insert(row.values.begin(), row.name);
    config.rows.push_back(std::move(row.values));
  }
  return out + (config.rows.empty() ? "<p>The configurations are equal.</p>\n" : to_html(config));
}

std::string utc_time(double seconds) {
  if (!std::isfinite(seconds) || std::fabs(seconds) > 1e11) return "an unknown time";
  const auto t = static_cast<std::time_t>(seconds);
  std::tm parts{};
  gmtime_r(&t, &parts);
  char text[64];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

// Memory, times, events and settings of one run.
std::string run_sections(const RunLog& log, size_t k, bool alone, const ReportDetail& detail) {
  const std::string prefix = fmt::format("r{}-", k), of = alone ? "" : ": " + log.name();
  std::string out;
  out += section(
      prefix + "time", "Time" + of,
      figures(step_time_figure(log, prefix) + stage_figure(log, prefix) + timeline_figure(log, prefix, detail)));
  out += section(prefix + "memory", "Memory" + of, figures(memory_figures(log, prefix)));
  out += section(prefix + "plan", "Predicted and measured" + of, prediction_table(log));
  out += section(prefix + "unusual", "What was unusual" + of, unusual_table(log, detail));
  return out + section(prefix + "settings", "Settings" + of, config_tables(log, detail));
}

std::string page(const Runs& runs, const ReportDetail& detail) {
  const bool alone = runs.size() == 1;
  std::string names;
  for (const RunLog* log : runs) names += (names.empty() ? "" : ", ") + log->name();
  const RunSummary first = summarize(*runs.front());
  std::string main =
      section("summary", "Summary",
              (alone ? tiles(first) : "") + (alone ? html_details("All figures", comparison(runs)) : comparison(runs)));
  main += section("curves", "Training",
                  figures(loss_figure(runs, detail)) + loss_by_cost(runs, detail) +
                      figures(column_figures(runs, detail) + curve_figures(runs, detail)));
  for (size_t k = 0; k < runs.size(); ++k) main += run_sections(*runs[k], k, alone, detail);

  std::string out =
      "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n";
  out += "<title>" + html_text(names) + ": gpttrain report</title>\n<style>" + kStyle + "</style>\n</head>\n<body>\n";
  out += "<a class=\"skip\" href=\"#main\">Skip to content</a>\n<header>\n<h1>" + html_text(names) + "</h1>\n<p>" +
         html_text(alone ? first.status : fmt::format("{} runs", runs.size())) + "</p>\n";
  if (alone && !runs.front()->starts().empty())
    out += "<p class=\"soft\">begun " + utc_time(runs.front()->starts().front().time) + "</p>\n";
  out += "<nav aria-label=\"Sections\"><ul>";
  for (size_t at = 0; (at = main.find("<h2 id=\"", at)) != std::string::npos;) {
    const size_t id = at + 8, id_end = main.find('"', id), text = main.find('>', id_end) + 1;
    at = main.find("</h2>", text);
    out += "<li><a href=\"#" + main.substr(id, id_end - id) + "\">" + main.substr(text, at - text) + "</a></li>";
  }
  out += "</ul></nav>\n</header>\n<main id=\"main\">\n" + main + "</main>\n<footer><p>gpttrain " + program_version() +
         ". MFU: 6 n N<sub>mm</sub> + 6 L q s n FLOPs a step over the device's peak; medians leave out the first two "
         "steps of each start. Every figure lists its values.</p></footer>\n</body>\n</html>\n";
  return out;
}

}  // namespace

std::string report_html(const std::vector<const RunLog*>& runs) {
  GT_CHECK(!runs.empty() && runs.size() <= kMostReportRuns, runs.size(), " runs");
  ReportDetail detail;
  std::string out = page(runs, detail);
  while (out.size() > kMostReportBytes && detail.rows > 8) {
    detail.points = std::max<size_t>(detail.points / 2, 16);
    detail.boxes /= 2;
    detail.rows /= 2;
    out = page(runs, detail);
  }
  return out;
}

void write_report(const RunLog& log) {
  const std::string path = log.dir() + "/report.html", fresh = path + ".new";
  write_run_file(fresh, report_html({&log}));
  GT_REQUIRE(std::rename(fresh.c_str(), path.c_str()) == 0, Exit::kIo, path,
             ": cannot be written: ", std::strerror(errno));
}

}  // namespace gt
