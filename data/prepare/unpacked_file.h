// Bytes of a file, unpacked if it is gzip data, as gzip -dc writes them. Unlike zlib's gzread, it refuses bytes after a
// gzip member that begin no other one.
#pragma once
#include <zlib.h>

#include <cstdint>
#include <string>

#include "kernels/core/files.h"

namespace gt {

class UnpackedFile {
 public:
  // `name`: for errors.
  UnpackedFile(Fd file, std::string name);
  ~UnpackedFile();
  UnpackedFile(const UnpackedFile&) = delete;
  UnpackedFile& operator=(const UnpackedFile&) = delete;

  // Reads up to `size` bytes; 0 at the end. Throws kIo for errors of reading and damaged gzip data, kUsage for other
  // bytes after it, naming their place.
  size_t read(char* to, size_t size);
  bool packed() const { return packed_; }
  bool seek(int64_t byte);                                             // false: not possible
  int64_t disk_position() const { return taken_ - stream_.avail_in; }  // bytes of the file that were used

 private:
  bool refill();  // false at the end of the file
  bool begins_member();
  [[noreturn]] void damaged(const char* why) const;

  const Fd file_;
  const std::string name_;
  std::string input_;
  z_stream stream_{};  // its input is what of `input_` was not used
  int64_t taken_ = 0;  // bytes read from the file
  bool packed_ = false, in_member_ = false;
};

}  // namespace gt
