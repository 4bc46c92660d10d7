// A small real file system: a tmpfs mounted for one test. Requires root and permission to mount.
#pragma once
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace gt {

class SmallDisk {
 public:
  explicit SmallDisk(int64_t bytes) {
    std::string name = (std::filesystem::temp_directory_path() / "gpttrain-disk-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      why_ = "mkdtemp failed";
      return;
    }
    path_ = name;
    const std::string options = "size=" + std::to_string(bytes) + ",mode=0700";
    if (mount("gpttrain-test", path_.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, options.c_str()) != 0)
      why_ = std::string("a tmpfs cannot be mounted here: ") + std::strerror(errno);
  }
  ~SmallDisk() {
    if (path_.empty()) return;
    if (why_.empty()) umount2(path_.c_str(), MNT_DETACH);
    rmdir(path_.c_str());
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  const std::string& path() const { return path_; }
  const std::string& why_not() const { return why_; }  // "" if mounted
  int64_t free() const { return static_cast<int64_t>(std::filesystem::space(path_).available); }

  // Fills the disk up to `leave` free bytes, or what is available.
  void fill(int64_t leave) const {
    empty();
    std::ofstream out(path_ + "/filler", std::ios::binary);
    const std::vector<char> block(4096, 'x');
    for (int64_t n = (free() - leave) / 4096; n > 0; --n) out.write(block.data(), 4096);
    out.flush();
  }
  void empty() const { unlink((path_ + "/filler").c_str()); }

 private:
  std::string path_, why_;
};

}  // namespace gt
