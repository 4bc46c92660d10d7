#include "launch/ranks/env_file.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>

#include "kernels/core/check.h"
#include "launch/config/json_text.h"

namespace gt {
namespace {

constexpr const char* kName = ".deepspeed_env";

std::string_view trimmed(std::string_view s) {
  constexpr const char* kBlank = " \t\r";
  const size_t first = s.find_first_not_of(kBlank);
  return first == std::string_view::npos ? "" : s.substr(first, s.find_last_not_of(kBlank) - first + 1);
}

bool is_variable(std::string_view name) {
  const auto good = [](unsigned char c) { return std::isalnum(c) || c == '_'; };
  return !name.empty() && !std::isdigit(static_cast<unsigned char>(name[0])) &&
         std::all_of(name.begin(), name.end(), good);
}

void set_variable(Variables& out, std::string_view name, std::string_view value) {
  for (auto& [n, v] : out)
    if (n == name) return void(v = value);
  out.emplace_back(name, value);
}

}  // namespace

Variables parse_env_file(std::string_view text, const std::string& name) {
  Variables out;
  int number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.empty() || line[0] == '#') continue;
    const size_t eq = line.find('=');
    const std::string_view variable = trimmed(line.substr(0, eq));
    GT_REQUIRE(eq != std::string_view::npos && is_variable(variable) && line.find('\0') == std::string_view::npos,
               Exit::kUsage, name, ":", number, ": expected NAME=VALUE, found \"", line.substr(0, 60), "\"");
    set_variable(out, variable, trimmed(line.substr(eq + 1)));
  }
  return out;
}

EnvFiles read_env_files() {
  namespace fs = std::filesystem;
  EnvFiles out;
  const char* home = std::getenv("HOME");
  std::error_code ec;
  for (const std::string& folder : {std::string(home ? home : ""), std::string(".")}) {
    const std::string path = folder + "/" + kName;
    if (folder.empty() || !fs::is_regular_file(path, ec)) continue;
    if (!out.files.empty() && fs::equivalent(path, out.files[0], ec)) continue;
    for (const auto& [name, value] : parse_env_file(read_json_file(path), path))
      set_variable(out.variables, name, value);
    out.files.push_back(path);
  }
  return out;
}

}  // namespace gt
