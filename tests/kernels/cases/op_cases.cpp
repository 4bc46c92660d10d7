#include "tests/kernels/cases/op_cases.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "kernels/core/rng.h"
#include "tests/kernels/reference/reference_ops.h"

namespace gt::test {
namespace {

constexpr int64_t kGuard = 256;
constexpr std::byte kPoison{0xFF};      // NaN in every floating dtype
constexpr std::byte kWriteGuard{0xA5};  // around outputs: detects stray writes
// Guards around inputs are NaN, so a stray read spoils the result.

std::byte guard_of(Access a) { return a == Access::kIn ? kPoison : kWriteGuard; }

// Device memory of all blocks of one case.
class DeviceBlocks {
 public:
  DeviceBlocks(const Backend& backend, Stream stream, const Images& images) : backend_(backend), stream_(stream) {
    for (const auto& image : images) {
      const auto size = static_cast<int64_t>(image.size());
      bytes_.push_back(size);
      data_.push_back(static_cast<std::byte*>(backend.device->alloc(stream.device.index, size)));
      backend.device->copy(data_.back(), image.data(), size, stream);
    }
    backend.device->synchronize(stream);
  }
  DeviceBlocks(const DeviceBlocks&) = delete;
  DeviceBlocks& operator=(const DeviceBlocks&) = delete;
  ~DeviceBlocks() {
    for (size_t i = 0; i < data_.size(); ++i) backend_.device->free(stream_.device.index, data_[i], bytes_[i]);
  }
  Images download() const {
    Images images;
    for (size_t i = 0; i < data_.size(); ++i) {
      images.emplace_back(static_cast<size_t>(bytes_[i]));
      backend_.device->copy(images.back().data(), data_[i], bytes_[i], stream_);
    }
    backend_.device->synchronize(stream_);
    return images;
  }
  std::byte* data(size_t i) const { return data_[i]; }

 private:
  const Backend& backend_;
  Stream stream_;
  std::vector<std::byte*> data_;
  std::vector<int64_t> bytes_;
};

bool same_kind(double a, double b) { return std::isnan(a) ? std::isnan(b) : a == b; }

}  // namespace

Fill normal(double scale, double mean) {
  return [=](const Tensor& t, uint64_t key) {
    for (int64_t i = 0; i < t.numel(); ++i) set(t, i, mean + scale * philox_normal(key, static_cast<uint64_t>(i)));
  };
}

Fill positive() {
  return [](const Tensor& t, uint64_t key) {
    for (int64_t i = 0; i < t.numel(); ++i) set(t, i, 0.01 + std::pow(philox_normal(key, static_cast<uint64_t>(i)), 2));
  };
}

Fill ids(int64_t begin, int64_t end) {
  return [=](const Tensor& t, uint64_t key) {
    for (int64_t i = 0; i < t.numel(); ++i) {
      const uint64_t draw = splitmix64(key + static_cast<uint64_t>(i)) % static_cast<uint64_t>(end - begin);
      set(t, i, static_cast<double>(i == 1 ? begin : i == 2 ? end - 1 : begin + static_cast<int64_t>(draw)));
    }
  };
}

Fill values(std::vector<double> v) {
  return [v = std::move(v)](const Tensor& t, uint64_t) {
    for (int64_t i = 0; i < t.numel(); ++i) set(t, i, v[static_cast<size_t>(i) % v.size()]);
  };
}

int64_t OpCase::begin(const Block& b) const {
  return kGuard + (skewed.empty() || skewed == b.label ? skew * size_of(b.dtype) : 0);
}
int64_t OpCase::image_bytes(const Block& b) const { return begin(b) + b.shape.numel() * size_of(b.dtype) + kGuard; }

std::vector<std::byte*> OpCase::host_pointers(Images& images) const {
  std::vector<std::byte*> data;
  for (size_t i = 0; i < blocks_.size(); ++i) data.push_back(images[i].data() + begin(blocks_[i]));
  return data;
}

void OpCase::prepare(uint64_t seed) {
  before_.clear();
  for (const Block& b : blocks_) {
    auto& image = before_.emplace_back(static_cast<size_t>(image_bytes(b)), guard_of(b.access));
    const Tensor t{image.data() + begin(b), b.shape, b.dtype, Device{}};
    std::fill_n(t.data, t.bytes(), kPoison);
    if (b.fill) {
      // Big cases repeat their draws: drawing would take longer than timing.
      const int64_t drawn = big ? std::min<int64_t>(t.numel(), 1 << 16) : t.numel(), part = drawn * size_of(b.dtype);
      const Tensor head = big ? Tensor{t.data, {drawn}, b.dtype, Device{}} : t;
      b.fill(head, stream_key(seed, cat(op, '/', name, '/', b.label)));
      for (int64_t at = part; at < t.bytes(); at += part) {
        std::memcpy(t.data + at, t.data, static_cast<size_t>(std::min(part, t.bytes() - at)));
      }
    }
  }
  if (!big) derive_inputs(host_pointers(before_));
  after_ = before_;
  const Backend reference{DeviceKind::kCpu, &reference_ops(), cpu_backend().device};
  if (!big) call(reference, host_pointers(after_), Stream{});
}

Images OpCase::run(const Backend& backend, Stream stream) const {
  GT_CHECK(!before_.empty(), op, " ", name, ": prepare() comes first");
  const DeviceBlocks blocks(backend, stream, before_);
  std::vector<std::byte*> data;
  for (size_t i = 0; i < blocks_.size(); ++i) data.push_back(blocks.data(i) + begin(blocks_[i]));
  call(backend, data, stream);
  return blocks.download();
}

std::string OpCase::compare_block(size_t index, const std::vector<std::byte>& got) const {
  const Block& b = blocks_[index];
  const auto first = static_cast<size_t>(begin(b)), last = got.size() - static_cast<size_t>(kGuard);
  for (size_t i = 0; i < got.size(); ++i) {
    const bool inside = i >= first && i < last;
    if (inside && b.access != Access::kIn && tolerance > 0) continue;
    if (got[i] == after_[index][i]) continue;
    const auto at = (static_cast<int64_t>(i) - static_cast<int64_t>(first)) / size_of(b.dtype);
    if (!inside) return cat("writes outside of ", b.label, to_string(b.shape), ", near element ", at);
    if (b.access == Access::kIn) return cat("changes its input ", b.label, " at element ", at);
    return cat(b.label, to_string(b.shape), " differs at element ", at, ", where equal bits are required");
  }
  if (b.access == Access::kIn) return "";

  std::vector<std::byte> expected = after_[index], found = got;
  const Tensor expected_block{expected.data() + first, b.shape, b.dtype, Device{}};
  const Tensor have{found.data() + first, b.shape, b.dtype, Device{}};
  double error = 0, norm = 0;
  for (int64_t i = 0; i < expected_block.numel(); ++i) {
    const double w = get(expected_block, i), h = get(have, i);
    if (!std::isfinite(w) && !non_finite) return cat("the reference itself gives ", w, " in ", b.label, "[", i, "]");
    if (!std::isfinite(w) || !std::isfinite(h)) {
      if (!same_kind(w, h)) return cat(b.label, "[", i, "] is ", h, ", expected ", w);
      continue;
    }
    error += (h - w) * (h - w);
    norm += w * w;
  }
  // An all-zero expected result must be met exactly.
  const double relative = error == 0  ? 0
                          : norm == 0 ? std::numeric_limits<double>::infinity()
                                      : std::sqrt(error / norm);
  return relative <= tolerance
             ? ""
             : cat(b.label, to_string(b.shape), " is off by ", relative, " (relative L2), allowed ", tolerance);
}

std::string OpCase::compare(const Images& got) const {
  std::string all;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const std::string one = compare_block(i, got[i]);
    if (!one.empty()) all += cat(all.empty() ? "" : "; ", one);
  }
  return all;
}

double OpCase::time(const Backend& backend, Stream stream, int repeats) const {
  const DeviceBlocks blocks(backend, stream, before_);
  std::vector<std::byte*> data;
  for (size_t i = 0; i < blocks_.size(); ++i) data.push_back(blocks.data(i) + begin(blocks_[i]));
  std::vector<double> seconds;
  for (int r = -2; r < repeats; ++r) {
    const auto start = std::chrono::steady_clock::now();
    call(backend, data, stream);
    backend.device->synchronize(stream);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (r >= 0) seconds.push_back(took.count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
  return seconds[static_cast<size_t>(repeats / 2)];
}

double OpCase::bytes() const {
  double total = -untouched;
  for (const Block& b : blocks_) {
    total += static_cast<double>(b.shape.numel() * size_of(b.dtype)) * (b.access == Access::kInOut ? 2 : 1);
  }
  return total;
}

int64_t case_stride() {
  const char* text = std::getenv("GPT_TEST_FULL") != nullptr ? nullptr : std::getenv("GPT_TEST_EVERY");
  return text == nullptr ? 1 : std::max<int64_t>(1, std::atoll(text));
}

OpCases op_cases() {
  OpCases all;
  add_matrix_cases(all);
  add_elementwise_cases(all);
  add_model_cases(all);
  add_attention_cases(all);
  add_dropout_cases(all);
  add_quant_cases(all);
  add_fp8_cases(all);
  add_gradient_cases(all);
  add_cache_cases(all);
  add_transformer_cases(all);
  add_expert_cases(all);
  add_step_cases(all);
  add_optim_cases(all);
  return all;
}

}  // namespace gt::test
