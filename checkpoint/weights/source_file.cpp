#include "checkpoint/weights/source_file.h"

#include <filesystem>

#include "kernels/core/text.h"

namespace gt {
namespace {

namespace fs = std::filesystem;

}  // namespace

bool is_there(const std::string& path) {
  std::error_code ec;
  return fs::exists(fs::symlink_status(path, ec));
}

std::string link_target(const std::string& path) {
  std::error_code ec;
  if (!fs::is_symlink(fs::symlink_status(path, ec))) return path;
  const fs::path target = fs::canonical(path, ec);
  if (!ec) return target.string();
  const bool absent = ec == std::errc::no_such_file_or_directory;
  const std::string why = ec.message(), to = printable(fs::read_symlink(path, ec).string());
  GT_REQUIRE(absent, Exit::kUsage, path, ": is a symbolic link to ", to, ", which cannot be followed: ", why);
  fail(Exit::kUsage, path, ": is a symbolic link to ", to,
       ", which is not there; download the file again, or copy the folder with its links followed (cp -rL)");
}

File open_source(Vfs& vfs, const std::string& path) { return File::open(vfs, link_target(path)); }

std::string read_source(Vfs& vfs, const std::string& path, int64_t limit) {
  return read_file(vfs, link_target(path), limit);
}

}  // namespace gt
