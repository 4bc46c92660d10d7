// Reductions of ranks that share a device: bitwise identical to the host's.
#include "kernels/core/combine.h"

#include <cstring>
#include <random>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/memory.h"
#include "kernels/core/open_stream.h"
#include "tests/support/skip.h"
#include "tests/support/test.h"

namespace gt::test {
namespace {

std::vector<std::byte> random_part(int64_t bytes, DType t, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> out(static_cast<size_t>(bytes));
  for (std::byte& b : out) b = static_cast<std::byte>(random());
  if (t == DType::kF32 || t == DType::kF64 || t == DType::kBF16 || t == DType::kF16) {  // no NaN: its bits may differ
    const auto e = static_cast<size_t>(size_of(t));
    for (size_t i = e - 1; i < out.size(); i += e) out[i] = (out[i] & std::byte{0x87}) | std::byte{0x30};
  }
  return out;
}

struct OnDevice {
  OnDevice(const Backend& b, int64_t bytes, int64_t skip)
      : buffer(bytes + skip, {b.kind, 0}, *b.device), data(buffer.data() + skip) {}
  Buffer buffer;
  std::byte* data;
};

// `skip`: bytes from an aligned address to the first element.
void check(const Backend& cuda, Stream s, DType t, ReduceOp op, int parts, int64_t n, int64_t skip) {
  INFO(name_of(t) << ", op " << static_cast<int>(op) << ", " << parts << " parts of " << n << " at " << skip);
  const int64_t bytes = n * size_of(t);
  Combine call{.parts = parts, .targets = parts, .count = n, .dtype = t, .op = op};
  std::vector<std::vector<std::byte>> host;
  std::vector<OnDevice> device;
  std::vector<const std::byte*> from;
  for (int r = 0; r < parts; ++r) {
    host.push_back(random_part(bytes, t, static_cast<uint32_t>(17 * r + n)));
    device.emplace_back(cuda, bytes, skip);
    cuda.device->copy(device.back().data, host.back().data(), bytes, s);
    call.from[r] = call.to[r] = device.back().data;
    from.push_back(host.back().data());
  }
  std::vector<std::byte> expected(static_cast<size_t>(bytes)), got(static_cast<size_t>(bytes));
  if (parts == 1) {
    expected = host[0];
    device.emplace_back(cuda, bytes, skip);
    call.to[0] = device.back().data;
  } else {
    reduce_in_order(expected.data(), from.data(), parts, n, t, op);
  }
  cuda.device->combine(call, s);
  for (int k = 0; k < call.targets; ++k) {
    cuda.device->copy(got.data(), call.to[k], bytes, s);
    cuda.device->synchronize(s);
    REQUIRE(std::memcmp(got.data(), expected.data(), got.size()) == 0);
  }
}

}  // namespace

TEST_CASE("parity: reductions of ranks that share a device are bitwise those of the host") {
  const Backend* cuda = cuda_backend(nullptr);
  if (cuda == nullptr) { GT_SKIP("there is no GPU"); }
  const OpenStream s(*cuda->device, 0, 1);
  for (const DType t : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI32, DType::kI64, DType::kByte})
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin})
      for (const int parts : {1, 2, 5})
        for (const int64_t n : {1, 15, 1000, 70001}) {
          if (t == DType::kByte && op == ReduceOp::kSum && parts > 1) continue;  // never used
          check(*cuda, s, t, op, parts, n, 0);
          if (n < 2000) check(*cuda, s, t, op, parts, n, size_of(t));
        }
  check(*cuda, s, DType::kBF16, ReduceOp::kSum, Combine::kMost, 100, 0);
}

}  // namespace gt::test
