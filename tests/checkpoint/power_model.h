// A disk that forgets: records what a save does to the file system, then builds what may be left of it when the power
// fails after any of those calls. Strict POSIX, stricter than ext4: without an fsync of the file any part of its bytes
// may be there, in units of a sector and in any order; without an fsync of the folder any of its entries may be.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/vfs.h"

namespace gt::ckpt {

// Does everything for real and notes it.
class RecordingVfs : public Vfs {
 public:
  struct Call {
    enum Kind { kOpen, kCreate, kWrite, kReserve, kSync, kRename, kUnlink, kMkdir, kRmdir } kind;
    int handle = -1;  // of the open file that kOpen and kCreate made
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
  explicit PowerModel(const std::string& root);  // what is there now, all of it durable
  void apply(const RecordingVfs::Call&);
  int pending() const;  // changes that an outage may lose

  // Files and folders (with a / at the end, nothing in them) by path below the root. keep(i): whether pending change i
  // reached the disk. A kept write that tear() does not spare lacks the sectors that it names.
  using Image = std::map<std::string, std::string>;
  Image after_outage(const std::function<bool(int)>& keep, const std::function<bool(int64_t sector)>& tear) const;

 private:
  struct Write {
    int64_t offset;
    std::string data;
    int64_t length;  // >= 0: the file has this many bytes, nothing is written
  };
  struct Entry {
    std::string name;
    int node;  // -1: there is no such name any more
  };
  struct Change {  // of a folder, whole or not at all
    std::vector<Entry> entries;
  };
  struct Node {
    bool folder = false;
    std::string bytes;               // durable
    std::vector<Write> writes;       // not yet
    std::map<std::string, int> now;  // entries as programs see them
    std::map<std::string, int> durable;
    std::vector<Change> changes;
  };
  int add(bool folder);
  int read_tree(const std::string& path);
  int find(const std::string& path) const;
  std::pair<int, std::string> place(const std::string& path) const;  // folder, name
  void change(int folder, std::vector<Entry>);
  void sync(Node&);

  std::string root_;
  std::vector<Node> nodes_;
  std::map<int, int> open_;  // handle -> node
};

void materialise(const PowerModel::Image&, const std::string& root);

}  // namespace gt::ckpt
