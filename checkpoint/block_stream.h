// A file written front to back through windows, so that every byte, padding included, passes the block checksums on
// its way and every write is large and aligned. With helpers one thread fills and checks windows while others write
// those before. Knows bytes and one file; no tensor, no format.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/vfs.h"
#include "kernels/core/sha256.h"

namespace gt {

struct WriteOptions {
  int threads = 1;      // that work on a file: one fills windows, the others write them; 1: it does both
  bool direct = false;  // past the kernel's copy, where the file system takes that and the file has a whole window
};

class BlockStream {
 public:
  static constexpr int64_t kWindow = int64_t{2} << 20;  // bytes, whole blocks; small enough that three stay in a cache

  // Creates the file and reserves `total` bytes: a full disk shows here, before the first byte. kIo.
  BlockStream(Vfs&, const std::string& path, int64_t total, const WriteOptions&, bool sha256);
  ~BlockStream();  // what is not finished stays unfinished
  BlockStream(const BlockStream&) = delete;
  BlockStream& operator=(const BlockStream&) = delete;

  // Where the bytes from `offset` on go, and how many fit; what was skipped is zero. Offsets never go back. Valid until
  // the next call. kIo: an earlier window could not be written.
  std::span<std::byte> room(int64_t offset, int64_t bytes);
  // What was put into the last room() has this CRC32C: it need not be computed again, unless it lies in two blocks.
  void has_crc(uint32_t crc);

  // Writes the rest, syncs and closes. The CRC32C of each 1 MiB block. kIo.
  std::vector<uint32_t> finish();
  std::string sha256_hex();  // of the whole file, after finish(); "" when it was not wanted

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  using Window = std::unique_ptr<std::byte[], Free>;
  struct Full {
    Window data;
    int64_t bytes, base;
  };
  void next_window();
  void zero_to(int64_t end);
  void sum_to(int64_t end);
  void end_of_sum(uint32_t block, int64_t end);
  void flush();
  void write(const Full&);
  void help();
  void rethrow();

  const int64_t total_;
  const bool wants_sha_;
  File file_;
  std::optional<File> direct_;
  int64_t base_ = 0, used_ = 0;  // used_: bytes of the window that are final
  int64_t summed_ = 0, room_ = 0;  // of them: in blocks_ and block_; before the last room()
  uint32_t block_ = 0;             // CRC32C of the block that is not whole yet
  Window window_;
  Sha256 sha_;
  std::vector<uint32_t> blocks_;

  size_t most_threads_ = 0;  // helpers
  std::vector<std::thread> helpers_;
  std::mutex mutex_;  // guards all below
  std::condition_variable change_;
  std::vector<Window> free_;
  std::deque<Full> full_;
  size_t in_flight_ = 0;
  bool stop_ = false, buffered_ = true;
  std::exception_ptr failure_;
};

}  // namespace gt
