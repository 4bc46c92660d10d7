#include "launch/tools/bench/peer_output.h"

#include <regex>
#include <sstream>

#include "kernels/core/check.h"

namespace gt {

const std::vector<PeerFormat>& peer_formats() {
  using Unit = PeerFormat::Unit;
  static const std::vector<PeerFormat> formats{
      {"llm.c", R"(^step +\d+/\d+ .*\| *([0-9.]+) ms \|)", Unit::kMilliseconds},
      {"llm.c-cpu", R"(^step \d+: train loss .*\(took ([0-9.]+) ms\))", Unit::kMilliseconds},
      {"llmq", R"(^\[T\] step +\d+ .*\| time: +([0-9.]+) ms \|)", Unit::kMilliseconds},
      {"llmq-slow", R"(^\[T\] step +\d+ .*\| time: +([0-9.]+) +s \|)", Unit::kSeconds},
      {"tokens/s", R"(^(?:.* )?([0-9.]+) tokens/s$)", Unit::kRate}};
  return formats;
}

std::vector<double> peer_rates(const std::string& output, const std::vector<PeerFormat>& formats, double tokens,
                               std::string* found) {
  for (const PeerFormat& f : formats) {
    std::regex pattern;
    try {
      pattern.assign(f.pattern);
    } catch (const std::regex_error& e) {
      fail(Exit::kUsage, "--pattern ", f.pattern, ": not a valid regular expression: ", e.what());
    }
    GT_REQUIRE(pattern.mark_count() >= 1, Exit::kUsage, "--pattern ", f.pattern,
               ": needs a group in parentheses, for the number");
    std::vector<double> rates;
    std::istringstream in(output);
    for (std::string line; std::getline(in, line);) {
      std::smatch m;
      if (!line.empty() && line.back() == '\r') line.pop_back();
      if (!std::regex_search(line, m, pattern)) continue;
      double value = 0;
      try {
        value = std::stod(m[1].str());
      } catch (const std::exception&) {
        fail(Exit::kUsage, "--pattern ", f.pattern, ": found \"", m[1].str(), "\", which is not a number, in: ", line);
      }
      if (value <= 0) continue;  // rounded to zero
      if (f.unit == PeerFormat::Unit::kRate)
        rates.push_back(value);
      else
        rates.push_back(tokens / (f.unit == PeerFormat::Unit::kSeconds ? value : value * 1e-3));
    }
    if (rates.empty()) continue;
    *found = f.name;
    return rates;
  }
  return {};
}

}  // namespace gt
