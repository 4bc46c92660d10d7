// Read-only memory-mapped file.
#pragma once
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "kernels/core/files.h"

namespace gt {

// Unaligned load: tables of file formats are not aligned.
template <class T>
T load_at(const uint8_t* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

class MappedFile {
 public:
  MappedFile() = default;
  // Throws Error(kUsage) naming path and reason. An empty file maps to an empty span.
  explicit MappedFile(const std::string& path);
  MappedFile(const Fd& fd, const std::string& path);  // a regular file that is open for reading
  MappedFile(MappedFile&& o) noexcept { swap(o); }
  MappedFile& operator=(MappedFile&& o) noexcept {
    swap(o);
    return *this;
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }
  int64_t mtime_ns() const { return mtime_ns_; }
  // Device, inode, size, modification and change time at opening. Programs can set the times of files, except the last.
  std::string identity() const;
  const uint8_t* data() const { return data_; }
  std::span<const uint8_t> bytes() const { return {data_, static_cast<size_t>(size_)}; }
  // Starts readahead of these bytes. Never fails.
  void will_need(int64_t begin, int64_t count) const;
  // Returns whether size and modification time on disk still match the mapping.
  bool unchanged() const;

 private:
  void swap(MappedFile& o) noexcept;
  std::string path_;
  const uint8_t* data_ = nullptr;
  int64_t size_ = 0, mtime_ns_ = 0, ctime_ns_ = 0;
  uint64_t device_ = 0, inode_ = 0;
};

// Size and modification time of a path; size -1 when it does not exist.
struct FileStamp {
  int64_t size = -1, mtime_ns = 0;
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};
FileStamp stamp_of(const std::string& path);

}  // namespace gt
