#include "launch/options/foreign_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace gt {
namespace {

// Scheme of a URL, "s3"; "" for any other text.
std::string_view scheme_of(std::string_view text) {
  const size_t end = text.find("://");
  if (end == std::string_view::npos || end == 0 || !std::isalpha(static_cast<unsigned char>(text[0]))) return {};
  const std::string_view scheme = text.substr(0, end);
  const auto legal = [](unsigned char c) { return std::isalnum(c) || c == '+' || c == '-' || c == '.'; };
  return std::all_of(scheme.begin(), scheme.end(), legal) ? scheme : std::string_view();
}

// "org/model" of a URL of the Hugging Face hub, "https://huggingface.co/org/model/tree/main" or "hf://org/model"; ""
// for any other.
std::string hub_model(std::string_view url) {
  bool of_hub = false;
  for (const std::string_view begin :
       {"https://huggingface.co/", "http://huggingface.co/", "https://hf.co/", "http://hf.co/", "hf://"})
    if (!of_hub && url.starts_with(begin)) url.remove_prefix(begin.size()), of_hub = true;
  const size_t slash = url.find('/');
  if (!of_hub || slash == std::string_view::npos) return "";
  const std::string_view model = url.substr(0, url.find('/', slash + 1));
  const auto legal = [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.' || c == '/'; };
  return slash > 0 && slash + 1 < model.size() && std::all_of(model.begin(), model.end(), legal) ? std::string(model)
                                                                                                 : "";
}

std::string_view first_line(std::string_view text) {  // neither blank nor a comment of #
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin != std::string_view::npos && line[begin] != '#') return line.substr(begin);
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
  return {};
}

bool is_word(std::string_view s) {
  return !s.empty() && std::all_of(s.begin(), s.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c == '.' || c == ' ';
  });
}

bool named(const std::string& path, std::initializer_list<std::string_view> ends) {
  return std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return path.ends_with(end); });
}

bool is_python(const std::string& path, std::string_view line) {
  return named(path, {".py"}) || line.starts_with("import ") || line.starts_with("from ") || line.starts_with("def ");
}

bool is_toml(const std::string& path, std::string_view line) {
  if (named(path, {".toml", ".ini", ".cfg"})) return true;
  const size_t equals = line.find('='), end = line.find(']');
  return (line.starts_with('[') && end != std::string_view::npos && is_word(line.substr(1, end - 1)) &&
          !std::isdigit(static_cast<unsigned char>(line[1]))) ||
         (equals != std::string_view::npos && is_word(line.substr(0, equals)));
}

bool is_yaml(const std::string& path, std::string_view line) {
  const size_t colon = line.find(':');
  return named(path, {".yaml", ".yml"}) || line.starts_with("---") ||
         (colon != std::string_view::npos && is_word(line.substr(0, colon)));
}

}  // namespace

UrlProblem url_problem(std::string_view path) {
  const std::string_view scheme = scheme_of(path);
  if (scheme.empty()) return {};
  const std::string reason = fmt::format(
      "{}: is a URL; files are read and written in mounted file systems alone, not by {}", path.substr(0, 200), scheme);
  if (scheme == "file") {
    std::string_view rest = path.substr(scheme.size() + 3);
    if (rest.starts_with("localhost/")) rest.remove_prefix(9);
    return {reason, fmt::format("give the path, {}", rest)};
  }
  if (const std::string model = hub_model(path); !model.empty()) {
    const std::string folder = model.substr(model.find('/') + 1);
    return {reason,
            fmt::format("download it first: hf download {} --local-dir {}, and give {}", model, folder, folder)};
  }
  if (scheme == "http" || scheme == "https") return {reason, "download it first, and give the file"};
  return {reason, "mount the bucket (rclone mount, s3fs, gcsfuse) and give its folder, or copy the files"};
}

std::string foreign_config(const std::string& path, std::string_view text) {
  const std::string_view line = first_line(text);
  if (line.starts_with('{') || line.starts_with("//") || line.starts_with("/*")) return "";
  const auto converts = [&](const char* name, const char* load) {
    return fmt::format(
        "is {}, expected JSON; python3 -c 'import {}, sys; print(json.dumps({}, indent=2))' <{} converts it", name,
        load,
        std::string_view(load).starts_with("json, yaml") ? "yaml.safe_load(sys.stdin)"
                                                         : "tomllib.load(sys.stdin.buffer)",
        path);
  };
  if (is_python(path, line)) return "is Python, expected JSON: sections of keys, as in configs/tiny.json";
  if (is_toml(path, line)) return converts("TOML", "json, tomllib");
  if (is_yaml(path, line)) return converts("YAML", "json, yaml");
  return "";
}

}  // namespace gt
