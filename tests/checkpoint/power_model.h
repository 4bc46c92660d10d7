// Disk model for power failures: records the file system calls of a save, then builds what may remain when power fails
// after any of them. Strict POSIX, stricter than ext4: without an fsync of the file any subset of its sectors may be
// on disk, in any order; without an fsync of the folder any subset of its entries.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/store/vfs.h"

namespace gt::ckpt {

// Executes every call and records it.
class RecordingVfs : public Vfs {
 public:
  struct Call {
    enum Kind { kOpen, kCreate, kWrite, kReserve, kSync, kRename, kUnlink, kMkdir, kRmdir } kind;
    int handle = -1;  // open file that kOpen or kCreate returned
    std::string path = {}, to = {};
    int64_t offset = 0, bytes = 0;
    std::string data = {};
  };
  const std::vector<Call>& calls() const { return calls_; }

  int open(const std::string& path, int flags, int mode) override;
  int close(int fd) override;
  int64_t pwrite(int fd, const void* data, int64_t bytes, int64_t offset) override;
  int fsync(int fd) override;
  int fallocate(int fd, int64_t bytes) override;
  int rename(const std::string& from, const std::string& to) override;
  int unlink(const std::string& path) override;
  int mkdir(const std::string& path, int mode) override;
  int rmdir(const std::string& path) override;

 private:
  int note(Call, const std::function<int()>& real);
  std::mutex mutex_;
  std::map<int, int> handles_;  // descriptor -> handle
  int next_ = 0;
  std::vector<Call> calls_;
};

// The disk below one folder. Only that folder itself is certain to exist.
class PowerModel {
 public:
  explicit PowerModel(const std::string& root);  // current contents, all durable
  void apply(const RecordingVfs::Call&);
  int pending() const;  // changes that a power failure may lose

  // Files and folders (trailing /, no content) by path below the root. keep(i): whether pending change i reached the
  // disk. A kept write loses the sectors for which tear() is true.
  using Image = std::map<std::string, std::string>;
  Image after_outage(const std::function<bool(int)>& keep, const std::function<bool(int64_t sector)>& tear) const;

 private:
  struct Write {
    int64_t offset;
    std::string data;
    int64_t length;  // >= 0: sets the file size, writes nothing
  };
  struct Entry {
    std::string name;
    int node;  // -1: the name was removed
  };
  struct Change {  // of a folder, atomic
    std::vector<Entry> entries;
  };
  struct Node {
    bool folder = false;
    std::string bytes;               // durable
    std::vector<Write> writes;       // not yet durable
    std::map<std::string, int> now;  // entries visible to programs
    std::map<std::string, int> durable;
    std::vector<Change> changes;
  };
  int add(bool folder);
  int read_tree(const std::string& path);
  int find(const std::string& path) const;
  std::pair<int, std::string> parent_of(const std::string& path) const;  // folder, name
  void change(int folder, std::vector<Entry>);
  void sync(Node&);

  std::string root_;
  std::vector<Node> nodes_;
  std::map<int, int> open_;  // handle -> node
};

void materialise(const PowerModel::Image&, const std::string& root);

}  // namespace gt::ckpt
