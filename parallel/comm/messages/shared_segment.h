// Memory shared by the rank processes of one machine. It is unlinked once all of them have mapped it, so nothing is
// left behind, however they end.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

#include "parallel/comm/messages/setup_exchange.h"

namespace gt {

class SharedSegment {
 public:
  SharedSegment() = default;
  ~SharedSegment();
  SharedSegment(SharedSegment&&) noexcept;
  SharedSegment& operator=(SharedSegment&&) noexcept;

  // Collective over `ranks`, which share a machine. `construct` creates this rank's objects in the zeroed bytes
  // before any rank returns. Empty on all ranks if memory does not suffice on any.
  static SharedSegment open(const SetupExchange& ranks, int64_t bytes,
                            const std::function<void(std::byte*)>& construct);
  std::byte* data() const { return base_; }
  explicit operator bool() const { return base_ != nullptr; }

 private:
  std::byte* base_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace gt
