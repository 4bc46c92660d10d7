// Allocators. Buffer: long-lived (parameters, flat gradients, optimizer state). Arena: bump + mark/rollback (saved
// activations). Pool: first-fit, few live blocks, counted (activation gradients). All three return the same addresses
// for the same call sequence; CUDA graphs and bitwise reruns rely on it.
#pragma once
#include <vector>

#include "kernels/core/device.h"
#include "kernels/core/tensor.h"

namespace gt {

constexpr int64_t kAlign = 256;  // bytes; every block starts on a multiple
constexpr int64_t align_up(int64_t n, int64_t to = kAlign) { return (n + to - 1) / to * to; }

class Buffer {  // RAII device memory
 public:
  Buffer() = default;
  Buffer(int64_t bytes, Device d, const DeviceApi& api);
  Buffer(Buffer&& o) noexcept { swap(o); }
  Buffer& operator=(Buffer&& o) noexcept {
    swap(o);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  // The buffer, from byte `at` on, as a tensor.
  Tensor tensor(Shape s, DType t, int64_t at = 0) const;

 private:
  void swap(Buffer& o) noexcept;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  Device device_;
  const DeviceApi* api_ = nullptr;
};

class Arena {
 public:
  Arena() = default;
  explicit Arena(Buffer b) : buffer_(std::move(b)) {}
  struct Mark {
    int64_t top;
  };
  Mark mark() const { return {top_}; }
  void rollback(Mark m) {
    GT_DCHECK(m.top <= top_);
    top_ = m.top;
  }
  int64_t high_water() const { return peak_; }  // bytes
  int64_t used() const { return top_; }

  Tensor alloc(Shape s, DType t) {
    const int64_t need = align_up(s.numel() * size_of(t));
    GT_CHECK(top_ + need <= buffer_.bytes(), "arena needs ", top_ + need, " bytes of ", buffer_.bytes());
    std::byte* p = buffer_.data() + top_;
    top_ += need;
    if (top_ > peak_) peak_ = top_;
    return {p, s, t, buffer_.device()};
  }

 private:
  Buffer buffer_;
  int64_t top_ = 0, peak_ = 0;
};

class Pool {  // first-fit over a short list of live blocks, kept sorted by offset; blocks are reference counted
 public:
  Pool() { live_.reserve(256); }
  explicit Pool(Buffer b) : buffer_(std::move(b)) { live_.reserve(256); }
  // rows: takes memory for so many of them at least.
  Tensor alloc(Shape s, DType t, int64_t rows = 0);
  void retain(const Tensor& t) { ++find(t).uses; }
  void free(const Tensor& t);  // drops one reference; the last one frees
  int uses(const Tensor& t) { return find(t).uses; }
  bool owns(const Tensor& t) const { return t.data >= buffer_.data() && t.data < buffer_.data() + buffer_.bytes(); }
  size_t live() const { return live_.size(); }
  uint64_t fingerprint() const;  // hash of the live blocks; determines the addresses of later allocations
  int64_t high_water() const { return peak_; }  // bytes

 private:
  struct Block {
    int64_t begin, end;
    int uses;
  };
  Block& find(const Tensor& t);
  Buffer buffer_;
  std::vector<Block> live_;
  int64_t peak_ = 0;
};

}  // namespace gt
