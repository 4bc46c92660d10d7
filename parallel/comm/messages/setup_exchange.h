// Blocking exchanges over a channel before its group exists, to set up shared memory.
#pragma once
#include <chrono>
#include <cstdint>

#include "parallel/comm/messages/message_transport.h"

namespace gt {

class SetupExchange {
 public:
  SetupExchange(MessageTransport& t, MessageChannel& c, int rank, int size, std::chrono::milliseconds deadline)
      : transport_(t), channel_(c), rank_(rank), size_(size), deadline_(deadline) {}
  int rank() const { return rank_; }
  void broadcast(void* data, int64_t bytes) const;  // from rank 0
  bool everybody(bool mine) const;                  // whether `mine` is true on every rank
 private:
  void finish(MessageSet&) const;  // waits; throws kHang past the deadline
  MessageTransport& transport_;
  MessageChannel& channel_;
  int rank_, size_;
  std::chrono::milliseconds deadline_;
};

}  // namespace gt
