// Passes the payload of messages from one rank process to another of its machine in shared memory. A message is sent
// once it is copied there, whatever its size; a socket accepts what its buffer holds (net.core.wmem_max) and the rest
// only during later calls of the sender. The memory has no name: its descriptor is sent over a Unix socket.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/core/files.h"

namespace gt {

// A ring buffer for one direction between two ranks. The receiver frees messages in the order of the sender's put().
class MessageRing {
 public:
  MessageRing() = default;
  ~MessageRing();
  MessageRing(MessageRing&&) noexcept;
  MessageRing& operator=(MessageRing&&) noexcept;

  // Creates the sender's side, `bytes` bytes, and returns the receiver's descriptor. Empty if the system refuses.
  static MessageRing create(int64_t bytes, Fd& descriptor);
  // Maps the receiver's side. Empty if the descriptor is not one of create().
  static MessageRing open(const Fd& descriptor);
  explicit operator bool() const { return head_ != nullptr; }
  int64_t capacity() const { return capacity_; }

  // Copies a message into the ring. Returns its position, or nothing while there is no space.
  std::optional<uint64_t> put(const std::byte* from, int64_t bytes);
  // Returns the message at a position; nullptr if it would exceed the memory.
  const std::byte* find(uint64_t at, int64_t bytes) const;
  // Returns the space of that message, and of all before it, to the sender.
  void free(uint64_t at, int64_t bytes);

 private:
  struct Head;  // precedes the data
  bool map(const Fd&, int64_t bytes);
  std::byte* data() const;
  Head* head_ = nullptr;
  int64_t capacity_ = 0;
  uint64_t used_ = 0;  // end of the last message; positions only grow, and are modulo capacity() in memory
};

}  // namespace gt
