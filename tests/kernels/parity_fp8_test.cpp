// FP8 data written by a producer is bitwise identical to quantizing its stored result, so an FP8 layer does not depend
// on where quantization happens. On the CPU, and on CUDA where there is a device.
#include <cstring>

#include "kernels/core/memory.h"
#include "kernels/core/open_stream.h"
#include "tests/kernels/cases/op_cases.h"
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
  Codes(ScratchRows& scratch, int64_t n, int64_t cols, DType format)
      : amax(scratch.filled({1}, DType::kF32, 0, values({2.3}))),
        rowwise(scratch.empty({n, cols}, format)),
        columnwise(scratch.empty({cols, n}, format)),
        scale_inv(scratch.empty({1}, DType::kF32)),
        step_amax(scratch.empty({1}, DType::kF32)),
        sums(scratch.empty({cols}, DType::kF32)) {}
  Fp8Out out() const {
    return {.amax = amax, .rowwise = rowwise, .columnwise = columnwise, .scale_inv = scale_inv, .step_amax = step_amax};
  }
  QuantizeFp8 of(Tensor x) const { return {.x = x, .fp8 = out()}; }
};

void check_same(ScratchRows& scratch, const Codes& a, const Codes& b) {
  CHECK((scratch.bytes(a.rowwise) == scratch.bytes(b.rowwise)));
  CHECK((scratch.bytes(a.columnwise) == scratch.bytes(b.columnwise)));
  CHECK((scratch.bytes(a.scale_inv) == scratch.bytes(b.scale_inv)));
  CHECK((scratch.bytes(a.step_amax) == scratch.bytes(b.step_amax)));
  CHECK((scratch.bytes(a.sums) == scratch.bytes(b.sums)));
  float largest = 0;
  std::memcpy(&largest, scratch.bytes(a.step_amax).data(), sizeof largest);
  CHECK(largest > 0);
}

constexpr int64_t kShapes[][2] = {{80, 144}, {67, 131}, {48, 1024}, {32, 2048}, {16, 4096}};

void gelu_either_way(const Backend& backend, DType t, int64_t n, int64_t cols, bool gradient) {
  ScratchRows scratch(backend);
  const DType format = gradient ? DType::kF8E5M2 : DType::kF8E4M3;
  const Tensor x = scratch.filled({n, cols}, t, 1), pre = scratch.filled({n, cols}, t, 2),
               h = scratch.empty({n, cols}, t);
  Codes stored(scratch, n, cols, format), made(scratch, n, cols, format);
  if (gradient)
    scratch.ops().gelu_grad({.x = pre, .dout = x, .dx = h}, scratch.stream());
  else
    scratch.ops().gelu({.x = x, .out = h}, scratch.stream());
  QuantizeFp8 q = stored.of(h);
  q.sums = stored.sums;
  scratch.ops().quantize_fp8(q, scratch.stream());
  q = made.of(x);
  q.sums = made.sums;
  q.of = gradient ? Fp8Source::kGeluGrad : Fp8Source::kGelu;
  if (gradient) q.pre = pre;
  scratch.ops().quantize_fp8(q, scratch.stream());
  check_same(scratch, made, stored);
}

void norm_either_way(const Backend& backend, DType t, int64_t n, int64_t cols) {
  ScratchRows scratch(backend);
  const Tensor x = scratch.filled({n, cols}, t, 1), delta = scratch.filled({n, cols}, t, 2),
               out = scratch.empty({n, cols}, t);
  const Tensor gamma = scratch.filled({cols}, DType::kF32, 3), beta = scratch.filled({cols}, DType::kF32, 4);
  const auto args = [&](const Tensor& sum) {
    return LayerNorm{.x = x,
                     .delta = delta,
                     .gamma = gamma,
                     .beta = beta,
                     .sum = sum,
                     .mean = scratch.empty({n}, DType::kF32),
                     .rstd = scratch.empty({n}, DType::kF32)};
  };
  LayerNorm plain = args(scratch.empty({n, cols}, t)), fused = args(scratch.empty({n, cols}, t));
  plain.out = out;
  Codes stored(scratch, n, cols, DType::kF8E4M3), made(scratch, n, cols, DType::kF8E4M3);
  scratch.ops().layer_norm(plain, scratch.stream());
  scratch.ops().quantize_fp8(stored.of(out), scratch.stream());
  fused.fp8 = made.out();
  scratch.ops().layer_norm(fused, scratch.stream());
  check_same(scratch, made, stored);
  for (Tensor LayerNorm::*f : {&LayerNorm::sum, &LayerNorm::mean, &LayerNorm::rstd})
    CHECK((scratch.bytes(plain.*f) == scratch.bytes(fused.*f)));
}

// Backward of a norm whose delta comes from an FP8 GEMM. sums: bias gradient; in another order on a device.
void norm_gradient_either_way(const Backend& backend, DType t, int64_t n, int64_t cols, bool drops) {
  ScratchRows scratch(backend);
  const Shape s{n, cols};
  const Tensor x = scratch.filled(s, t, 1), dout = scratch.filled(s, t, 2), dsum = scratch.filled(s, t, 3);
  const Tensor gamma = scratch.filled({cols}, DType::kF32, 4), mean = scratch.filled({n}, DType::kF32, 5);
  const Tensor rstd = scratch.filled({n}, DType::kF32, 6, positive());
  const auto args = [&](const Tensor& sums) {
    LayerNormGrad g{.x = x, .gamma = gamma, .mean = mean, .rstd = rstd, .dout = dout, .dsum = dsum};
    g.dx = scratch.empty(s, t), g.dgamma = scratch.empty({cols}, DType::kF32),
    g.dbeta = scratch.empty({cols}, DType::kF32);
    if (drops) {
      g.ddelta = scratch.empty(s, t);
      g.drop = {.mask = {.key = 11, .threshold = 1u << 30, .scale = 4.f / 3}, .rows = {.seq = 16}};
    }
    g.dbias = sums;
    return g;
  };
  Codes stored(scratch, n, cols, DType::kF8E5M2), made(scratch, n, cols, DType::kF8E5M2);
  const Tensor apart = scratch.empty({cols}, DType::kF32), beside = scratch.empty({cols}, DType::kF32);
  const LayerNormGrad plain = args(apart);
  LayerNormGrad fused = args(beside);
  scratch.ops().layer_norm_grad(plain, scratch.stream());
  QuantizeFp8 q = stored.of(drops ? plain.ddelta : plain.dx);
  const Tensor encoded = scratch.empty({cols}, DType::kF32);
  q.sums = encoded;
  scratch.ops().quantize_fp8(q, scratch.stream());
  fused.fp8 = made.out();
  scratch.ops().layer_norm_grad(fused, scratch.stream());
  check_same(scratch, made, stored);
  for (Tensor LayerNormGrad::*f : {&LayerNormGrad::dx, &LayerNormGrad::ddelta})
    if (plain.*f) CHECK((scratch.bytes(plain.*f) == scratch.bytes(fused.*f)));
  if (&backend != &cpu_backend()) return;
  for (Tensor LayerNormGrad::*f : {&LayerNormGrad::dgamma, &LayerNormGrad::dbeta})
    CHECK((scratch.bytes(plain.*f) == scratch.bytes(fused.*f)));
  CHECK((scratch.bytes(beside) == scratch.bytes(apart)));
  CHECK((scratch.bytes(encoded) == scratch.bytes(apart)));
}

}  // namespace

TEST_CASE("parity: fused FP8 outputs are bitwise those of quantizing the stored result") {
  std::vector<const Backend*> backends{&cpu_backend()};
  if (const Backend* cuda = cuda_backend(nullptr)) backends.push_back(cuda);
  for (const Backend* b : backends)
    for (const auto& [n, cols] : kShapes)
      for (const DType t : k16BitDtypes) {
        INFO(b->ops->name << " [" << n << ", " << cols << "] " << name_of(t));
        gelu_either_way(*b, t, n, cols, false);
        gelu_either_way(*b, t, n, cols, true);
        norm_either_way(*b, t, n, cols);
        for (const bool drops : {false, true}) norm_gradient_either_way(*b, t, n, cols, drops);
      }
}

}  // namespace gt::test
