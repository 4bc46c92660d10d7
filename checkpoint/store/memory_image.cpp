#include "checkpoint/store/memory_image.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "checkpoint/format/state_json.h"
#include "checkpoint/store/vfs.h"
#include "kernels/core/files.h"
#include "kernels/core/hash/crc32c.h"
#include "kernels/core/json.h"

namespace gt {
namespace {

constexpr int kFlags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;

int64_t bytes_of(const ShardView& v) { return v.data.numel() * size_of(v.data.dtype); }

}  // namespace

int64_t tensor_bytes(std::span<const ShardView> views) {
  int64_t sum = 0;
  for (const ShardView& v : views) sum += bytes_of(v);
  return sum;
}

MemoryImage::MemoryImage(const std::string& path, int64_t tensor_bytes) : bytes_(file_bytes(tensor_bytes)) {
  const Fd fd(open(path.c_str(), O_RDWR | O_CREAT | kFlags, 0600));
  if (!fd) fail_io("open of " + path, -errno);
  struct stat s {};
  if (fstat(fd.get(), &s) != 0) fail_io("stat of " + path, -errno);
  if (s.st_size != bytes_ && ftruncate(fd.get(), 0) != 0) fail_io("truncation of " + path, -errno);
  // Allocates the memory now: a full file system is an error here and a SIGBUS later.
  if (const int error = posix_fallocate(fd.get(), 0, bytes_); error != 0)
    fail_io(cat("allocation of ", bytes_, " bytes for ", path), -error);
  void* base = mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) fail_io("mapping of " + path, -errno);
  base_ = static_cast<std::byte*>(base);
}

MemoryImage::MemoryImage(MemoryImage&& o) noexcept : base_(std::exchange(o.base_, nullptr)), bytes_(o.bytes_) {}

MemoryImage::~MemoryImage() {
  if (base_ != nullptr) munmap(base_, static_cast<size_t>(bytes_));
}

std::optional<ImageHeader> MemoryImage::read_header(const std::string& path) {
  const Fd fd(open(path.c_str(), O_RDONLY | kFlags));
  struct stat s {};
  if (!fd || fstat(fd.get(), &s) != 0 || !S_ISREG(s.st_mode) || s.st_uid != geteuid()) return std::nullopt;
  ImageHeader h;
  if (pread(fd.get(), &h, sizeof h, 0) != sizeof h || h.magic != ImageHeader::kMagic || h.complete != 1)
    return std::nullopt;
  return h;
}

// A process that is killed between two stores must not leave a complete header over other bytes.
void MemoryImage::set_complete(int32_t value) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::atomic_ref<int32_t>(head().complete).store(value, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

uint32_t MemoryImage::checksum() const {
  const uint32_t state = crc32c(base_ + kState, static_cast<size_t>(head().state_bytes));
  return crc32c(base_ + kTensors, static_cast<size_t>(bytes_ - kTensors), state);
}

void MemoryImage::write(ImageHeader h, const TrainState& state, std::span<const ShardView> views, const DeviceApi& api,
                        Stream stream) {
  mark_incomplete();
  const std::string text = to_json(state).dump();
  GT_CHECK(static_cast<int64_t>(text.size()) <= kTensors - kState, "state of ", text.size(), " bytes");
  std::memcpy(base_ + kState, text.data(), text.size());
  std::byte* at = base_ + kTensors;
  for (const ShardView& v : views) {
    api.copy(at, v.data.data, bytes_of(v), stream);
    at += bytes_of(v);
  }
  GT_CHECK(at == base_ + bytes_, "views of ", at - base_ - kTensors, " bytes in an image of ", bytes_ - kTensors);
  api.synchronize(stream);
  h.magic = ImageHeader::kMagic;
  h.state_bytes = static_cast<int64_t>(text.size());
  h.complete = 0;
  head() = h;
  head().crc = checksum();
  set_complete(1);
}

TrainState MemoryImage::read(std::span<const ShardView> views, const DeviceApi& api, Stream stream) const {
  const ImageHeader& h = head();
  GT_REQUIRE(h.complete == 1 && h.state_bytes >= 0 && h.state_bytes <= kTensors - kState && h.crc == checksum(),
             Exit::kDamaged, "the copy of rank ", h.rank, "'s step ", h.step, " in memory is damaged");
  const std::byte* at = base_ + kTensors;
  for (const ShardView& v : views) {
    api.copy(v.data.data, at, bytes_of(v), stream);
    at += bytes_of(v);
  }
  api.synchronize(stream);
  const auto* text = reinterpret_cast<const char*>(base_ + kState);
  const std::string_view state(text, static_cast<size_t>(h.state_bytes));
  return state_from(parse_json<nlohmann::ordered_json>(state, "state in memory", kOwnJson));
}

}  // namespace gt
