#include "kernels/core/memory.h"

#include <algorithm>
#include <utility>

#include "kernels/core/hash/state_hash.h"

namespace gt {

Buffer::Buffer(int64_t bytes, Device d, const DeviceApi& api) : bytes_(align_up(bytes)), device_(d), api_(&api) {
  if (bytes_ > 0) data_ = static_cast<std::byte*>(api.alloc(d.index, bytes_));
}

Buffer::~Buffer() {
  if (data_ != nullptr) api_->free(device_.index, data_, bytes_);
}

void Buffer::swap(Buffer& o) noexcept {
  std::swap(data_, o.data_);
  std::swap(bytes_, o.bytes_);
  std::swap(device_, o.device_);
  std::swap(api_, o.api_);
}

Tensor Buffer::tensor(Shape s, DType t, int64_t at) const {
  GT_CHECK(at >= 0 && at + s.numel() * size_of(t) <= bytes_, "view of ", s.numel() * size_of(t), " bytes at ", at,
           " leaves a buffer of ", bytes_);
  return {data_ + at, s, t, device_};
}

Tensor Pool::alloc(Shape s, DType t, int64_t rows) {
  const int64_t numel = rows > s.rows() ? rows * s.cols() : s.numel();
  const int64_t need = std::max(align_up(numel * size_of(t)), kAlign);
  int64_t at = 0;
  size_t i = 0;
  for (; i < live_.size() && live_[i].begin - at < need; ++i) at = live_[i].end;
  GT_CHECK(at + need <= buffer_.bytes(), "gradient pool of ", buffer_.bytes(), " bytes is full: ", need,
           " more requested");
  live_.insert(live_.begin() + static_cast<ptrdiff_t>(i), {at, at + need, 1});
  if (at + need > peak_) peak_ = at + need;
  return {buffer_.data() + at, s, t, buffer_.device()};
}

uint64_t Pool::fingerprint() const {
  StateHash f;
  for (const Block& b : live_)
    f.add(static_cast<uint64_t>(b.begin)).add(static_cast<uint64_t>(b.end)).add(static_cast<uint64_t>(b.uses));
  return f.value();
}

Pool::Block& Pool::find(const Tensor& t) {
  const int64_t at = t.data - buffer_.data();
  for (Block& b : live_)
    if (b.begin == at) return b;
  GT_CHECK(false, "tensor is not a live block of this pool");
  return live_.front();
}

void Pool::free(const Tensor& t) {
  Block& b = find(t);
  if (--b.uses == 0) live_.erase(live_.begin() + (&b - live_.data()));
}

std::string to_string(const Shape& s) {
  std::string out = "[";
  for (int i = 0; i < s.rank; ++i) out += (i ? ", " : "") + std::to_string(s[i]);
  return out + "]";
}

bool complete(const DeviceApi& d) {
  return d.alloc && d.free && d.alloc_host && d.free_host && d.copy && d.zero && d.open_stream && d.close_stream &&
         d.synchronize && d.create_event && d.destroy_event && d.record && d.wait && d.await && d.done && d.count &&
         d.describe && d.memory;
}

}  // namespace gt
