#include "launch/tools/bench/bench_history.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/core/check.h"
#include "kernels/core/files.h"
#include "kernels/core/json.h"
#include "launch/observe/sinks/progress.h"
#include "launch/options/output.h"
#include "launch/tools/bench/bench_record.h"

namespace gt {
namespace {

using Json = nlohmann::json;

void each_record(const std::string& path, const std::function<void(const Json&)>& take) {
  if (!std::filesystem::exists(path)) return;
  std::istringstream in(read_whole_file(path));
  std::string line;
  for (int64_t n = 1; std::getline(in, line); ++n) {
    if (line.empty()) continue;
    const Json j = parse_json_if_valid<Json>(line);
    const bool whole = j.is_object() && j.contains("config") && j.contains("tokens_per_second") &&
                       j["tokens_per_second"].is_number() && j.contains("time") && j["time"].is_string() &&
                       j.contains("git") && j["git"].is_string();
    GT_REQUIRE(whole, Exit::kDamaged, path, ", line ", n, ": not a record of gpttrain bench: ", line.substr(0, 80),
               ". Remove that line, or name another file with --history");
    take(j);
  }
}

// Returns whether two values are equal on all keys that both have, recursively.
bool agree(const Json& a, const Json& b) {
  if (!a.is_object() || !b.is_object()) return a == b;
  for (const auto& [key, value] : a.items())
    if (const auto it = b.find(key); it != b.end() && !agree(value, *it)) return false;
  return true;
}

bool alike(const Json& a, const Json& b) {
  for (const char* key : {"device", "isa", "threads", "ranks", "ranks_per_device"})
    if (!a.contains(key) || !b.contains(key) || a[key] != b[key]) return false;
  Json x = a["config"], y = b["config"];
  for (Json* config : {&x, &y})
    for (const char* section : {"log", "checkpoint"})
      if (config->is_object()) config->erase(section);
  return agree(x, y);
}

}  // namespace

std::optional<EarlierBench> last_comparable(const std::string& path, const std::string& record) {
  const Json mine = parse_json<Json>(record, "record", kOwnJson);
  std::optional<EarlierBench> found;
  each_record(path, [&](const Json& j) {
    if (alike(mine, j)) found = {j["time"], j["git"], j["tokens_per_second"]};
  });
  return found;
}

void require_history(const std::string& path) {
  each_record(path, [](const Json&) {});
  require_writable(path);
}

std::string add_to_history(const std::string& path, const std::string& record) {
  const std::optional<EarlierBench> before = last_comparable(path, record);
  std::ofstream out(path, std::ios::app);
  out << record + "\n" << std::flush;
  GT_REQUIRE(out, Exit::kIo, path, ": cannot be written");
  if (!before) return cat("the first of its kind in ", path);
  return fmt::format(
      "{:.3f} times the {} tokens/s of {} (git {}); one run each is not significant: use gpttrain bench peer",
      parse_json<Json>(record, "record", kOwnJson).at("tokens_per_second").get<double>() / before->tokens_per_second,
      format_count(before->tokens_per_second), before->time, before->git);
}

}  // namespace gt
