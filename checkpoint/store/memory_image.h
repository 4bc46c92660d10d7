// A rank's state in a file of a file system in memory, which outlives the rank's process but not its machine. The file
// is mapped and written in place. An image counts only while its header marks it as complete.
#pragma once
#include <optional>
#include <span>
#include <string>

#include "checkpoint/checkpoint.h"

namespace gt {

// Version of an image: attempt of the job, and number of the image within the attempt.
struct ImageVersion {
  int64_t attempt = -1, sequence = -1;
  friend auto operator<=>(const ImageVersion&, const ImageVersion&) = default;
};

// First bytes of the file. Written and read by the same build.
struct ImageHeader {
  static constexpr uint64_t kMagic = 0x6779636f70733031;
  uint64_t magic = 0;
  uint64_t layout = 0;  // of the views of all ranks: an image fits no other layout
  ImageVersion version;
  int64_t step = -1;
  int64_t state_bytes = 0;
  int32_t rank = -1, complete = 0;
  uint32_t crc = 0;  // CRC-32C of state and tensors
  uint32_t unused = 0;
};

class MemoryImage {
 public:
  // Creates the file, or opens one of that size, and allocates its memory. `tensor_bytes`: of the rank's views. Throws
  // IoError: no space.
  MemoryImage(const std::string& path, int64_t tensor_bytes);
  ~MemoryImage();
  MemoryImage(MemoryImage&& o) noexcept;
  MemoryImage& operator=(MemoryImage&&) = delete;

  // Returns the header of a complete image in a regular file owned by this user; nullopt if there is none.
  static std::optional<ImageHeader> read_header(const std::string& path);
  static int64_t file_bytes(int64_t tensor_bytes) { return kTensors + tensor_bytes; }

  // Copies state and views, which have tensor_bytes in total, into the image. Waits for the stream.
  void write(ImageHeader, const TrainState&, std::span<const ShardView>, const DeviceApi&, Stream);
  // Copies the tensors into the views and returns the state. Throws kDamaged if the checksum differs.
  TrainState read(std::span<const ShardView>, const DeviceApi&, Stream) const;

  // For a transfer: header, and state with tensors. A receiver marks its image incomplete first and writes the header
  // last.
  std::span<std::byte> header() const { return {base_, sizeof(ImageHeader)}; }
  std::span<std::byte> content() const { return {base_ + kState, static_cast<size_t>(bytes_ - kState)}; }
  void mark_incomplete() { set_complete(0); }

 private:
  static constexpr int64_t kState = 4096, kTensors = kState + (int64_t{256} << 10);  // offsets
  ImageHeader& head() const { return *reinterpret_cast<ImageHeader*>(base_); }
  void set_complete(int32_t value);
  uint32_t checksum() const;
  std::byte* base_ = nullptr;
  int64_t bytes_ = 0;
};

// Bytes of all views' data.
int64_t tensor_bytes(std::span<const ShardView>);

}  // namespace gt
