#include "launch/train/save/disk_space.h"

#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "kernels/core/check.h"
#include "launch/observe/sinks/progress.h"

namespace gt {

int64_t free_bytes(const std::string& dir) {
  std::error_code ec;
  std::filesystem::path at = std::filesystem::absolute(dir, ec);
  struct statvfs s {};
  while (statvfs(at.c_str(), &s) != 0) {
    if (!at.has_relative_path()) return -1;
    at = at.parent_path();
  }
  if (s.f_blocks == 0) return -1;  // file systems that report no size
  return static_cast<int64_t>(geteuid() == 0 ? s.f_bfree : s.f_bavail) * static_cast<int64_t>(s.f_frsize);
}

std::string check_disk(const DiskSpace& disk) {
  if (disk.free < 0 || disk.saves == 0) return "";
  const auto size = [](int64_t bytes) {
    return fmt::format("{} ({} bytes)", format_bytes(static_cast<double>(bytes)), bytes);
  };
  GT_REQUIRE(disk.there > 0 || disk.free >= disk.checkpoint - disk.checkpoint / 8, Exit::kIo, disk.dir,
             ": a checkpoint of this run takes ", size(disk.checkpoint), ", the disk has ", size(disk.free),
             " free, so none could be written. Free space there (gpttrain ckpt prune removes old steps), or choose "
             "another disk with --checkpoint.dir");
  const int64_t more = std::max<int64_t>(1, disk.most - disk.there);
  const int64_t steps = disk.saves < 0 ? more : std::min(more, disk.saves);
  if (disk.free / std::max<int64_t>(1, disk.checkpoint) >= steps) return "";
  return fmt::format(
      "{}: {} more checkpoints of {} each have to fit, but the disk has {} free. Saves fail while it is full, and "
      "training continues without them: free space there, lower --checkpoint.keep, or choose another disk with "
      "--checkpoint.dir",
      disk.dir, steps, size(disk.checkpoint), size(disk.free));
}

}  // namespace gt
