#include "checkpoint/store/steps.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <filesystem>

#include "kernels/core/hash/sha256.h"

namespace gt {
namespace {

namespace fs = std::filesystem;

fs::directory_iterator entries(const std::string& dir) {
  std::error_code ec;
  fs::directory_iterator it(dir, ec);
  if (ec) fail_io("reading of folder " + dir, -ec.value());
  return it;
}

int64_t size_in_step(Vfs& vfs, const std::string& path) {
  try {
    return File::open(vfs, path).size();
  } catch (const IoError& e) {
    GT_REQUIRE(e.errno_value() != ENOENT, Exit::kDamaged, path,
               ": is missing; all ranks must write to one shared folder");
    throw;
  }
}

void check_size(Vfs& vfs, const std::string& path, int64_t expected) {
  const int64_t found = size_in_step(vfs, path);
  GT_REQUIRE(found == expected, Exit::kDamaged, path, ": ", found, " bytes, the manifest has ", expected);
}

}  // namespace

std::string attempt_marker(const std::string& step_dir) {
  const fs::path p(step_dir);
  return (p.parent_path() / (".attempt-" + p.filename().string())).string();
}

bool is_attempt(const std::string& path) {
  std::error_code ec;
  if (!fs::exists(attempt_marker(path), ec)) return false;
  try {
    Vfs vfs;
    const std::string file = path + "/manifest.json";
    parse_manifest(read_file(vfs, file, kManifestLimit), file);
    return false;
  } catch (const Error& e) { return e.code() != Exit::kUsage; }  // kUsage: written by a newer program, but complete
}

std::string step_name(int64_t step) {
  char name[40];
  std::snprintf(name, sizeof name, "step-%09lld", static_cast<long long>(step));
  return name;
}

std::optional<int64_t> step_number(const std::string& name) {
  if (name.size() < 14 || name.size() > 5 + 18 || name.compare(0, 5, "step-") != 0 ||
      name.find_first_not_of("0123456789", 5) != std::string::npos)
    return std::nullopt;
  const int64_t step = std::stoll(name.substr(5));
  return step_name(step) == name ? std::optional(step) : std::nullopt;
}

std::vector<std::pair<int64_t, std::string>> list_steps(const std::string& dir) {
  std::vector<std::pair<int64_t, std::string>> out;
  std::error_code ec;
  if (fs::status(dir, ec).type() == fs::file_type::not_found) return out;
  for (const auto& e : entries(dir))
    if (const auto n = step_number(e.path().filename().string()); n && !is_attempt(e.path().string()))
      out.emplace_back(*n, e.path().string());
  std::sort(out.rbegin(), out.rend());
  return out;
}

OpenedStep open_step(Vfs& vfs, const std::string& path) {
  OpenedStep out;
  out.path = path;
  const std::string file = path + "/manifest.json";
  try {
    out.text = read_file(vfs, file, kManifestLimit);
  } catch (const IoError& e) {
    GT_REQUIRE(e.errno_value() != ENOENT && e.errno_value() != ENOTDIR, Exit::kDamaged, path,
               ": has no manifest.json: not a whole checkpoint");
    throw;
  }
  out.manifest = parse_manifest(out.text, file);
  const Manifest& m = out.manifest;
  const auto named = step_number(fs::path(path).filename().string());
  GT_REQUIRE(!named || *named == m.step, Exit::kDamaged, path, ": holds step ", m.step);
  for (const ShardFile& f : m.files) {
    check_size(vfs, path + "/" + f.name, f.bytes);
    check_size(vfs, path + "/" + f.idx_name(), f.idx_bytes);
  }
  for (const AuxEntry& a : m.aux) {
    check_size(vfs, path + "/" + a.name, a.bytes);
    GT_REQUIRE(sha256_hex(read_file(vfs, path + "/" + a.name, a.bytes)) == a.sha256, Exit::kDamaged, path, "/", a.name,
               ": hash is not the one in the manifest");
  }
  return out;
}

std::string utc_now() {
  const std::time_t t = std::time(nullptr);
  std::tm tm{};
  ::gmtime_r(&t, &tm);
  char text[40];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm);
  return text;
}

std::string set_aside(Vfs& vfs, const std::string& path, const std::string& why) {
  std::error_code ec;
  const std::string base = cat(path, ".", why, "-", static_cast<long long>(std::time(nullptr)));
  std::string to = base;
  for (int k = 2; fs::exists(fs::symlink_status(to, ec)); ++k) to = cat(base, "-", k);
  rename_file(vfs, path, to);
  sync_directory(vfs, fs::path(path).parent_path().string());
  return to;
}

std::string newest_aside(const std::string& dir, const std::string& why) {
  std::string newest;
  std::error_code ec;
  if (fs::status(dir, ec).type() == fs::file_type::not_found) return newest;
  for (const auto& e : entries(dir)) {
    const std::string name = e.path().filename().string();
    const size_t dot = name.find("." + why + "-");
    if (dot != std::string::npos && step_number(name.substr(0, dot))) newest = std::max(newest, name);
  }
  return newest;
}

std::vector<std::string> abandon_newer(Vfs& vfs, const std::string& dir, int64_t step) {
  std::vector<std::string> out;
  for (const auto& [n, path] : list_steps(dir))
    if (n > step)
      out.push_back(cat(path, ": newer than step ", step, ", from which the run resumes; set aside as ",
                        set_aside(vfs, path, "abandoned")));
  return out;
}

int64_t bytes_in(const std::string& dir) {
  int64_t n = 0;
  std::error_code ec;
  for (const auto& e : fs::directory_iterator(dir, ec))
    if (e.is_regular_file(ec)) n += static_cast<int64_t>(e.file_size(ec));
  return n;
}

std::vector<std::string> list_attempts(const std::string& dir) {
  std::vector<std::string> out;
  std::error_code ec;
  if (!fs::is_directory(dir, ec)) return out;
  for (const auto& e : entries(dir)) {
    const std::string name = e.path().filename().string();
    const bool hidden = name.rfind(".tmp-step-", 0) == 0 || name.rfind(".del-step-", 0) == 0;
    if (!hidden && !(step_number(name) && is_attempt(e.path().string()))) continue;
    if (e.is_symlink(ec) || e.is_directory(ec)) out.push_back(name);
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<std::string> clean_attempts(Vfs& vfs, const std::string& dir) {
  std::vector<std::string> out = list_attempts(dir);
  for (const std::string& name : out) remove_attempt(vfs, dir, name);
  std::error_code ec;
  if (!fs::is_directory(dir, ec)) return out;
  for (const auto& e : entries(dir))  // markers of committed steps, or of none
    if (e.path().filename().string().rfind(".attempt-step-", 0) == 0) vfs.unlink(e.path().string());
  return out;
}

void remove_attempt(Vfs& vfs, const std::string& dir, const std::string& name) {
  remove_tree(vfs, dir + "/" + name);
  if (step_number(name)) vfs.unlink(attempt_marker(dir + "/" + name));
}

std::vector<std::pair<int64_t, std::string>> list_aside(const std::string& dir) {
  std::vector<std::pair<int64_t, std::string>> out;
  std::error_code ec;
  if (!fs::is_directory(dir, ec)) return out;
  for (const auto& e : entries(dir)) {
    const std::string name = e.path().filename().string();
    for (const char* why : {".corrupt-", ".abandoned-"})
      if (const size_t dot = name.find(why); dot != std::string::npos)
        if (const auto n = step_number(name.substr(0, dot))) out.emplace_back(*n, name);
  }
  std::sort(out.rbegin(), out.rend());
  return out;
}

std::vector<std::string> clean_attempts(const std::string& dir) {
  Vfs vfs;
  return clean_attempts(vfs, dir);
}

}  // namespace gt
