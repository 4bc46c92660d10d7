// Memory through which one rank process passes the data of its messages to another one of its machine. A message has
// left once it is copied there, whatever its size; of a larger one than its buffer (net.core.wmem_max) a socket takes
// the rest only while the sender calls. The memory has no name: its descriptor travels over a Unix socket.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/core/files.h"

namespace gt {

// One direction between two ranks: one of them puts, the other one takes, in the same order. Empty: neither.
class MessageRing {
 public:
  MessageRing() = default;
  ~MessageRing();
  MessageRing(MessageRing&&) noexcept;
  MessageRing& operator=(MessageRing&&) noexcept;

  // Of the sender: space for `bytes` bytes, and the descriptor for the receiver. Empty if the system grants none.
  static MessageRing create(int64_t bytes, Fd& descriptor);
  // Of the receiver. Empty if the descriptor is not of such memory.
  static MessageRing open(const Fd& descriptor);
  explicit operator bool() const { return head_ != nullptr; }
  int64_t capacity() const { return capacity_; }

  // Copies a message; returns where it is, nothing if there is no space yet.
  std::optional<uint64_t> put(const std::byte* from, int64_t bytes);
  // A message of the sender; nullptr if none can be there.
  const std::byte* find(uint64_t at, int64_t bytes) const;
  // Returns the space of that message, and of all before it, to the sender.
  void free(uint64_t at, int64_t bytes);

 private:
  struct Head;  // before the data
  bool map(const Fd&, int64_t bytes);
  std::byte* data() const;
  Head* head_ = nullptr;
  int64_t capacity_ = 0;
  uint64_t used_ = 0;  // end of the last message put; positions count all bytes ever used, modulo capacity in memory
};

}  // namespace gt
