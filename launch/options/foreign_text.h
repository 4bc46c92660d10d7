// Values and files of other tools' conventions that look like ours and are not: URLs as paths, configurations that are
// not JSON. Texts for the messages that refuse them.
#pragma once
#include <string>
#include <string_view>

namespace gt {

// What is wrong with a path that is a URL ("s3://bucket/runs"), and what to do; both empty for any other path.
struct UrlProblem {
  std::string reason, fix;
  explicit operator bool() const { return !reason.empty(); }
};
UrlProblem url_problem(std::string_view path);

// "is YAML, expected JSON; python3 -c '…' converts it" for a file whose name or text is YAML's, TOML's or Python's; ""
// for any other. For files that are no JSON.
std::string foreign_config(const std::string& path, std::string_view text);

}  // namespace gt
