#include "launch/options/near_path.h"

#include <algorithm>
#include <filesystem>

#include "kernels/core/check.h"
#include "launch/options/near_word.h"
#include "launch/options/options.h"

namespace gt {
namespace fs = std::filesystem;

namespace {
constexpr size_t kMostNames = 10000;  // directory entries examined at most
}

std::string near_path(const std::string& path, const std::vector<std::string>& suffixes) {
  fs::path p(path);
  if (!p.has_filename()) p = p.parent_path();
  const fs::path folder = p.has_parent_path() ? p.parent_path() : fs::path(".");
  std::vector<std::string> names;
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end && names.size() < kMostNames; it.increment(ec)) {
    std::string name = it->path().filename().string();
    for (const std::string& s : suffixes)
      if (name.size() > s.size() && name.ends_with(s)) name.resize(name.size() - s.size());
    names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  const std::string guess = did_you_mean(p.filename().string(), names);
  if (guess.empty()) return "";
  return (p.has_parent_path() ? folder / guess : fs::path(guess)).string();
}

void require_path(const std::string& flag, const std::string& path, const std::string& expected) {
  std::error_code ec;
  if (fs::exists(path, ec) || (ec && ec != std::errc::no_such_file_or_directory)) return;
  const std::string guess = near_path(path);
  fail(Exit::kUsage, flag, ": ", path, " does not exist; ",
       guess.empty() ? "give " + expected : "did you mean " + guess + "?");
}

}  // namespace gt
