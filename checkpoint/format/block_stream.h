// Writes a file front to back through fixed-size windows: block checksums cover every byte, padding included, and all
// writes are large and aligned. With worker threads, one thread fills and checksums windows while others write earlier
// ones. Handles bytes of one file; no tensors, no format.
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

#include "checkpoint/options.h"
#include "checkpoint/store/vfs.h"
#include "kernels/core/hash/sha256.h"

namespace gt {

class BlockStream {
 public:
  // Bytes; a multiple of the block size. Three windows fit in cache.
  static constexpr int64_t kWindow = int64_t{2} << 20;

  // Creates the file and reserves `total` bytes, so a full disk fails here, before the first write. Reads the options
  // threads, direct_io and hash. kIo.
  BlockStream(Vfs&, const std::string& path, int64_t total, const WriteOptions&);
  ~BlockStream();  // leaves an unfinished file unfinished
  BlockStream(const BlockStream&) = delete;
  BlockStream& operator=(const BlockStream&) = delete;

  // Returns the buffer for the bytes from `offset` on and how many fit; skipped bytes are zero. Requires: ascending
  // offsets. Valid until the next call. kIo: an earlier window could not be written.
  std::span<std::byte> buffer(int64_t offset, int64_t bytes);
  // Supplies the CRC32C of what was written to the last buffer(), so it is not computed again. Ignored where the range
  // crosses a block boundary.
  void set_crc(uint32_t crc);

  // Writes the rest, syncs and closes. Returns the CRC32C of each 1 MiB block. kIo.
  std::vector<uint32_t> finish();
  std::string sha256_hex();  // of the whole file, after finish(); "" unless requested

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
  void checksum_to(int64_t end);
  void finish_block(uint32_t block, int64_t end);
  void flush();
  void write(const Full&);
  void help();
  void rethrow();

  const int64_t total_;
  const bool computes_sha_;
  File file_;
  std::optional<File> direct_;
  int64_t base_ = 0, used_ = 0;            // used_: bytes of the window that are final
  int64_t summed_ = 0, buffer_begin_ = 0;  // window offsets: checksummed so far; begin of the last buffer()
  uint32_t block_ = 0;                     // running CRC32C of the incomplete block
  Window window_;
  Sha256 sha_;
  std::vector<uint32_t> blocks_;

  size_t most_threads_ = 0;  // worker threads
  std::vector<std::thread> helpers_;
  std::mutex mutex_;  // guards everything below
  std::condition_variable change_;
  std::vector<Window> free_;
  std::deque<Full> full_;
  size_t in_flight_ = 0;
  bool stop_ = false, buffered_ = true;
  std::exception_ptr failure_;
};

}  // namespace gt
