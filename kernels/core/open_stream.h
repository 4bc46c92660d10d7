// RAII stream.
#pragma once
#include <utility>

#include "kernels/core/device.h"

namespace gt {

// A stream that is closed at the end of its scope, also on exceptions. Declare it before anything that has work on it.
class OpenStream {
 public:
  OpenStream() = default;
  OpenStream(const DeviceApi& api, int index, int threads) : api_(&api), stream_(api.open_stream(index, threads)) {}
  OpenStream(OpenStream&& o) noexcept : api_(std::exchange(o.api_, nullptr)), stream_(o.stream_) {}
  OpenStream& operator=(OpenStream&& o) noexcept {
    std::swap(api_, o.api_);
    std::swap(stream_, o.stream_);
    return *this;
  }
  ~OpenStream() {
    if (api_ != nullptr) api_->close_stream(stream_);
  }
  operator Stream() const { return stream_; }
  Device device() const { return stream_.device; }

 private:
  const DeviceApi* api_ = nullptr;
  Stream stream_;
};

}  // namespace gt
