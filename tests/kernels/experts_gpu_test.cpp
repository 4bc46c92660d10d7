// A row of an expert on a GPU depends on no other row: alone, among 300 and, in f32, on a CPU it is bitwise identical.
#include <cstring>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/memory.h"
#include "kernels/core/open_stream.h"
#include "kernels/core/rng.h"
#include "tests/kernels/reference/reference_ops.h"
#include "tests/support/skip.h"
#include "tests/support/test.h"

namespace gt::test {
namespace {

constexpr int64_t kRows = 300, kIn = 72, kOut = 136;

// Tensors on a backend, filled from the host.
struct Uploads {
  const Backend& backend;
  Stream stream;
  std::vector<Buffer> buffers{};

  Tensor empty(Shape s, DType t) {
    const Device device{backend.kind, 0};
    return buffers.emplace_back(std::max<int64_t>(1, s.numel() * size_of(t)), device, *backend.device).tensor(s, t);
  }
  Tensor of(const std::vector<std::byte>& bytes, Shape s, DType t) {
    const Tensor out = empty(s, t);
    backend.device->copy(out.data, bytes.data(), out.bytes(), stream);
    return out;
  }
  std::vector<std::byte> read(const Tensor& t) {
    std::vector<std::byte> out(static_cast<size_t>(t.bytes()));
    backend.device->copy(out.data(), t.data, t.bytes(), stream);
    backend.device->synchronize(stream);
    return out;
  }
};

std::vector<std::byte> random_bytes(int64_t n, DType t, uint64_t key) {
  std::vector<std::byte> out(static_cast<size_t>(n * size_of(t)));
  const Tensor all{out.data(), {n}, t, {}};
  for (int64_t i = 0; i < n; ++i) set(all, i, philox_normal(key, static_cast<uint64_t>(i)));
  return out;
}

// Rows [first, first + count) of the product of all rows with the matrix of the second of three experts.
std::vector<std::byte> product(const Backend& backend, DType t, bool trans_b, int64_t first, int64_t count) {
  const OpenStream stream(*backend.device, 0, 1);
  Uploads up{backend, stream};
  const std::vector<int32_t> offsets{0, 0, static_cast<int32_t>(count), static_cast<int32_t>(count)};
  std::vector<std::byte> ends(offsets.size() * sizeof(int32_t));
  std::memcpy(ends.data(), offsets.data(), ends.size());
  const Tensor a = up.of(random_bytes(kRows * kIn, t, 1), {kRows, kIn}, t);
  const Tensor b = up.of(random_bytes(3 * kIn * kOut, t, 2), trans_b ? Shape{3, kOut, kIn} : Shape{3, kIn, kOut}, t);
  const Tensor out = up.empty({count, kOut}, t);
  backend.ops->grouped_gemm(
      {.a = a.slice(first, count), .b = b, .offsets = up.of(ends, {4}, DType::kI32), .out = out, .trans_b = trans_b},
      stream);
  return up.read(out);
}

}  // namespace

TEST_CASE("parity: a row that an expert computes alone on a GPU is bitwise that among 300, in f32 that of a CPU") {
  const Backend* cuda = cuda_backend(nullptr);
  if (cuda == nullptr) GT_SKIP("there is no GPU");
  for (const DType t : {DType::kF32, DType::kBF16, DType::kF16})
    for (const bool trans_b : {true, false}) {
      INFO(name_of(t) << (trans_b ? ", transposed" : ""));
      const std::vector<std::byte> all = product(*cuda, t, trans_b, 0, kRows);
      if (t == DType::kF32) {
        const bool as_on_a_cpu = all == product(cpu_backend(), t, trans_b, 0, kRows);
        CHECK(as_on_a_cpu);
      }
      for (const int64_t row : {int64_t{0}, int64_t{17}, int64_t{130}, kRows - 1}) {
        const std::vector<std::byte> alone = product(*cuda, t, trans_b, row, 1);
        const bool same = std::memcmp(alone.data(), all.data() + row * kOut * size_of(t), alone.size()) == 0;
        INFO("row " << row);
        CHECK(same);
      }
    }
}

}  // namespace gt::test
