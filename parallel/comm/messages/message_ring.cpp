#include "parallel/comm/messages/message_ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <cstring>
#include <new>
#include <utility>

namespace gt {
namespace {

constexpr int64_t kPage = 4096;
constexpr uint64_t kLine = 64;

uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }
uint64_t end_of(uint64_t at, int64_t bytes) { return round_up(at + static_cast<uint64_t>(bytes), kLine); }

}  // namespace

struct MessageRing::Head {
  std::atomic<uint64_t> freed{0};  // written by the receiver: space up to here is free
};

bool MessageRing::map(const Fd& fd, int64_t bytes) {
  void* base = mmap(nullptr, static_cast<size_t>(kPage + bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) return false;
  head_ = static_cast<Head*>(base);
  capacity_ = bytes;
  return true;
}

MessageRing MessageRing::create(int64_t bytes, Fd& descriptor) {
  constexpr int kSize = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  MessageRing ring;
  bytes = static_cast<int64_t>(round_up(static_cast<uint64_t>(bytes), kPage));
  Fd fd(memfd_create("gpttrain-messages", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0 || ftruncate(fd.get(), kPage + bytes) != 0 || fcntl(fd.get(), F_ADD_SEALS, kSize) != 0 ||
      !ring.map(fd, bytes))
    return ring;
  new (ring.head_) Head;
  descriptor = std::move(fd);
  return ring;
}

MessageRing MessageRing::open(const Fd& fd) {
  MessageRing ring;
  struct stat about {};
  const int seals = fcntl(fd.get(), F_GET_SEALS);  // without it the sender could cut the memory under the reader
  if (seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(fd.get(), &about) == 0 && about.st_size > kPage)
    ring.map(fd, about.st_size - kPage);
  return ring;
}

std::byte* MessageRing::data() const { return reinterpret_cast<std::byte*>(head_) + kPage; }

std::optional<uint64_t> MessageRing::put(const std::byte* from, int64_t bytes) {
  if (bytes > capacity_) return std::nullopt;
  const auto size = static_cast<uint64_t>(capacity_);
  const uint64_t freed = head_->freed.load(std::memory_order_acquire), begin = round_up(used_, size);
  const bool empty = freed == used_, fits = static_cast<uint64_t>(capacity_ - bytes) >= used_ % size;
  const uint64_t at = empty || !fits ? begin : used_;  // an empty ring restarts at its begin, which touches fewer pages
  if (!empty && end_of(at, bytes) - freed > size) return std::nullopt;
  std::memcpy(data() + at % size, from, static_cast<size_t>(bytes));
  used_ = end_of(at, bytes);
  return at;
}

const std::byte* MessageRing::find(uint64_t at, int64_t bytes) const {
  if (head_ == nullptr || bytes < 0 || bytes > capacity_) return nullptr;
  const uint64_t offset = at % static_cast<uint64_t>(capacity_);
  return offset <= static_cast<uint64_t>(capacity_ - bytes) ? data() + offset : nullptr;
}

void MessageRing::free(uint64_t at, int64_t bytes) { head_->freed.store(end_of(at, bytes), std::memory_order_release); }

MessageRing::~MessageRing() {
  if (head_ != nullptr) munmap(head_, static_cast<size_t>(kPage + capacity_));
}

MessageRing::MessageRing(MessageRing&& o) noexcept
    : head_(std::exchange(o.head_, nullptr)), capacity_(o.capacity_), used_(o.used_) {}

MessageRing& MessageRing::operator=(MessageRing&& o) noexcept {
  std::swap(head_, o.head_);
  std::swap(capacity_, o.capacity_);
  std::swap(used_, o.used_);
  return *this;
}

}  // namespace gt
