// Host memory for asynchronous device copies.
#pragma once
#include <algorithm>
#include <span>
#include <utility>

#include "kernels/core/device.h"

namespace gt {

// Array of `size` elements from DeviceApi::alloc_host, zeroed. Callers must synchronize before writing what the device
// still reads, or reading what it still writes.
template <class T>
class HostArray {
 public:
  HostArray() = default;
  HostArray(size_t size, const DeviceApi& api)
      : data_(static_cast<T*>(api.alloc_host(static_cast<int64_t>(size * sizeof(T))))), size_(size), api_(&api) {
    std::fill_n(data_, size_, T{});
  }
  HostArray(HostArray&& o) noexcept { swap(o); }
  HostArray& operator=(HostArray&& o) noexcept { return swap(o), *this; }
  HostArray(const HostArray&) = delete;
  HostArray& operator=(const HostArray&) = delete;
  ~HostArray() {
    if (data_ != nullptr) api_->free_host(data_, bytes());
  }
  T* data() const { return data_; }
  size_t size() const { return size_; }
  int64_t bytes() const { return static_cast<int64_t>(size_ * sizeof(T)); }
  T& operator[](size_t i) const { return data_[i]; }
  operator std::span<const T>() const { return {data_, size_}; }

 private:
  void swap(HostArray& o) noexcept { std::swap(data_, o.data_), std::swap(size_, o.size_), std::swap(api_, o.api_); }
  T* data_ = nullptr;
  size_t size_ = 0;
  const DeviceApi* api_ = nullptr;
};

}  // namespace gt
