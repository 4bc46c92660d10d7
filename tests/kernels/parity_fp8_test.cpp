// FP8 data written by a producer is bitwise identical to quantizing its stored result, so an FP8 layer does not depend
// on where quantization happens. On the CPU, and on CUDA where there is a device.
#include <cstring>

#include "kernels/core/memory.h"
#include "kernels/core/open_stream.h"
#include "tests/kernels/op_cases.h"
#include "tests/support/test.h"

namespace gt::test {
namespace {

// Tensors of one backend with contents drawn on the host.
class ScratchRows {
 public:
  explicit ScratchRows(const Backend& b) : backend_(b), stream_(*b.device, 0, 2) {}
  Tensor filled(Shape s, DType t, uint64_t key, Fill fill = normal()) {
    const Tensor out = empty(s, t);
    std::vector<std::byte> host(static_cast<size_t>(out.bytes()));
    fill({host.data(), s, t, Device{}}, key);
    backend_.device->copy(out.data, host.data(), out.bytes(), stream());
    backend_.device->synchronize(stream());
    return out;
  }
  Tensor empty(Shape s, DType t) {
    buffers_.emplace_back(s.numel() * size_of(t), stream().device, *backend_.device);
    backend_.device->zero(buffers_.back().data(), buffers_.back().bytes(), stream());
    return buffers_.back().tensor(s, t);
  }
  std::vector<std::byte> bytes(Tensor t) {
    std::vector<std::byte> out(static_cast<size_t>(t.bytes()));
    backend_.device->copy(out.data(), t.data, t.bytes(), stream());
    backend_.device->synchronize(stream());
    return out;
  }
  const OpTable& ops() const { return *backend_.ops; }
  Stream stream() const { return stream_; }

 private:
  const Backend& backend_;
  OpenStream stream_;
  std::vector<Buffer> buffers_;
};

// FP8 outputs of [rows, cols] with amax, scale_inv and sums.
struct Codes {
  Tensor amax, rowwise, columnwise, scale_inv, step_amax, sums;
  Codes(ScratchRows& room, int64_t n, int64_t cols, DType format)
      : amax(room.filled({1}, DType::kF32, 0, values({2.3}))),
        rowwise(room.empty({n, cols}, format)),
        columnwise(room.empty({cols, n}, format)),
        scale_inv(room.empty({1}, DType::kF32)),
        step_amax(room.empty({1}, DType::kF32)),
        sums(room.empty({cols}, DType::kF32)) {}
  Fp8Out out() const {
    return {.amax = amax, .rowwise = rowwise, .columnwise = columnwise, .scale_inv = scale_inv, .step_amax = step_amax};
  }
  QuantizeFp8 of(Tensor x) const { return {.x = x, .fp8 = out()}; }
};

void check_same(ScratchRows& room, const Codes& a, const Codes& b) {
  CHECK((room.bytes(a.rowwise) == room.bytes(b.rowwise)));
  CHECK((room.bytes(a.columnwise) == room.bytes(b.columnwise)));
  CHECK((room.bytes(a.scale_inv) == room.bytes(b.scale_inv)));
  CHECK((room.bytes(a.step_amax) == room.bytes(b.step_amax)));
  CHECK((room.bytes(a.sums) == room.bytes(b.sums)));
  float seen = 0;
  std::memcpy(&seen, room.bytes(a.step_amax).data(), sizeof seen);
  CHECK(seen > 0);
}

constexpr int64_t kShapes[][2] = {{80, 144}, {67, 131}, {48, 1024}, {32, 2048}, {16, 4096}};

void gelu_either_way(const Backend& backend, DType t, int64_t n, int64_t cols, bool gradient) {
  ScratchRows room(backend);
  const DType format = gradient ? DType::kF8E5M2 : DType::kF8E4M3;
  const Tensor x = room.filled({n, cols}, t, 1), pre = room.filled({n, cols}, t, 2), h = room.empty({n, cols}, t);
  Codes stored(room, n, cols, format), made(room, n, cols, format);
  if (gradient)
    room.ops().gelu_grad({.x = pre, .dout = x, .dx = h}, room.stream());
  else
    room.ops().gelu({.x = x, .out = h}, room.stream());
  QuantizeFp8 q = stored.of(h);
  q.sums = stored.sums;
  room.ops().quantize_fp8(q, room.stream());
  q = made.of(x);
  q.sums = made.sums;
  q.of = gradient ? Fp8Source::kGeluGrad : Fp8Source::kGelu;
  if (gradient) q.pre = pre;
  room.ops().quantize_fp8(q, room.stream());
  check_same(room, made, stored);
}

void norm_either_way(const Backend& backend, DType t, int64_t n, int64_t cols) {
  ScratchRows room(backend);
  const Tensor x = room.filled({n, cols}, t, 1), delta = room.filled({n, cols}, t, 2), out = room.empty({n, cols}, t);
  const Tensor gamma = room.filled({cols}, DType::kF32, 3), beta = room.filled({cols}, DType::kF32, 4);
  const auto args = [&](const Tensor& sum) {
    return LayerNorm{.x = x,
                     .delta = delta,
                     .gamma = gamma,
                     .beta = beta,
                     .sum = sum,
                     .mean = room.empty({n}, DType::kF32),
                     .rstd = room.empty({n}, DType::kF32)};
  };
  LayerNorm plain = args(room.empty({n, cols}, t)), fused = args(room.empty({n, cols}, t));
  plain.out = out;
  Codes stored(room, n, cols, DType::kF8E4M3), made(room, n, cols, DType::kF8E4M3);
  room.ops().layer_norm(plain, room.stream());
  room.ops().quantize_fp8(stored.of(out), room.stream());
  fused.fp8 = made.out();
  room.ops().layer_norm(fused, room.stream());
  check_same(room, made, stored);
  for (Tensor LayerNorm::*f : {&LayerNorm::sum, &LayerNorm::mean, &LayerNorm::rstd})
    CHECK((room.bytes(plain.*f) == room.bytes(fused.*f)));
}

// Backward of a norm whose delta comes from an FP8 GEMM. sums: bias gradient; in another order on a device.
void norm_gradient_either_way(const Backend& backend, DType t, int64_t n, int64_t cols, bool drops) {
  ScratchRows room(backend);
  const Shape s{n, cols};
  const Tensor x = room.filled(s, t, 1), dout = room.filled(s, t, 2), dsum = room.filled(s, t, 3);
  const Tensor gamma = room.filled({cols}, DType::kF32, 4), mean = room.filled({n}, DType::kF32, 5);
  const Tensor rstd = room.filled({n}, DType::kF32, 6, positive());
  const auto args = [&](const Tensor& sums) {
    LayerNormGrad g{.x = x, .gamma = gamma, .mean = mean, .rstd = rstd, .dout = dout, .dsum = dsum};
    g.dx = room.empty(s, t), g.dgamma = room.empty({cols}, DType::kF32), g.dbeta = room.empty({cols}, DType::kF32);
    if (drops) {
      g.ddelta = room.empty(s, t);
      g.drop = {.mask = {.key = 11, .threshold = 1u << 30, .scale = 4.f / 3}, .seq = 16};
    }
    g.dbias = sums;
    return g;
  };
  Codes stored(room, n, cols, DType::kF8E5M2), made(room, n, cols, DType::kF8E5M2);
  const Tensor apart = room.empty({cols}, DType::kF32), beside = room.empty({cols}, DType::kF32);
  const LayerNormGrad plain = args(apart);
  LayerNormGrad fused = args(beside);
  room.ops().layer_norm_grad(plain, room.stream());
  QuantizeFp8 q = stored.of(drops ? plain.ddelta : plain.dx);
  const Tensor encoded = room.empty({cols}, DType::kF32);
  q.sums = encoded;
  room.ops().quantize_fp8(q, room.stream());
  fused.fp8 = made.out();
  room.ops().layer_norm_grad(fused, room.stream());
  check_same(room, made, stored);
  for (Tensor LayerNormGrad::*f : {&LayerNormGrad::dx, &LayerNormGrad::ddelta})
    if (plain.*f) CHECK((room.bytes(plain.*f) == room.bytes(fused.*f)));
  if (&backend != &cpu_backend()) return;
  for (Tensor LayerNormGrad::*f : {&LayerNormGrad::dgamma, &LayerNormGrad::dbeta})
    CHECK((room.bytes(plain.*f) == room.bytes(fused.*f)));
  CHECK((room.bytes(beside) == room.bytes(apart)));
  CHECK((room.bytes(encoded) == room.bytes(apart)));
}

}  // namespace

TEST_CASE("parity: fused FP8 outputs are bitwise those of quantizing the stored result", "[PK13]") {
  std::vector<const Backend*> backends{&cpu_backend()};
  if (const Backend* cuda = cuda_backend(nullptr)) backends.push_back(cuda);
  for (const Backend* b : backends)
    for (const auto& [n, cols] : kShapes)
      for (const DType t : kHalves) {
        INFO(b->ops->name << " [" << n << ", " << cols << "] " << name_of(t));
        gelu_either_way(*b, t, n, cols, false);
        gelu_either_way(*b, t, n, cols, true);
        norm_either_way(*b, t, n, cols);
        for (const bool drops : {false, true}) norm_gradient_either_way(*b, t, n, cols, drops);
      }
}

}  // namespace gt::test
