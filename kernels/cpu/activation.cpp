// MLP activations on the CPU, gated or not: rows in chunks, split among threads.
#include <algorithm>

#include "kernels/cpu/check_args.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/simd/cast_16bit.h"
#include "kernels/cpu/simd/simd.h"

namespace gt::cpu {
namespace {

constexpr int64_t kChunk = 1024;       // elements of a row staged on the stack
constexpr int64_t kThreadChunks = 16;  // minimum chunks per thread

// Calls body(at, in, n) for chunks of rows: elements [at, at + n) of a tensor [n, F]. `in`: offset of the chunk in [n,
// F] or, gated, in [n, 2F], whose ups are F elements further.
template <class Body>
void each_chunk(Stream s, int64_t rows, int64_t cols, bool gated, Body body) {
  if (!gated) cols *= rows, rows = 1;  // without ups, rows follow each other
  const int64_t chunks = (cols + kChunk - 1) / kChunk;
  parallel_for(s, rows * chunks, kThreadChunks, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / chunks, first = i % chunks * kChunk;
      body(row * cols + first, row * cols * (gated ? 2 : 1) + first, std::min(kChunk, cols - first));
    }
  });
}

// Row count of the tensor [n, F]; checks the shapes.
int64_t rows_of(const char* op, const Tensor& x, const Tensor& out, bool gated) {
  GT_CHECK(out.shape.cols() * (gated ? 2 : 1) == x.shape.cols() && out.shape.rows() == x.shape.rows(), op, ": x ",
           to_string(x.shape), gated ? ", gated" : "", ", out ", to_string(out.shape));
  return out.numel() == 0 ? 0 : out.shape.rows();
}

}  // namespace

void activate(const Activate& p, Stream s) {
  require_same("activate", {"x", p.x}, {{"out", p.out}});
  const int64_t cols = p.out.shape.cols(), rows = rows_of("activate", p.x, p.out, p.gated);
  const Simd& f = simd();
  const auto act = f.activate[static_cast<size_t>(p.kind)];
  each_chunk(s, rows, cols, p.gated, [&](int64_t at, int64_t in, int64_t n) {
    float gate[kChunk], up[kChunk], out[kChunk];
    act(read(f, p.x, in, n, gate), p.gated ? read(f, p.x, in + cols, n, up) : nullptr, target(p.out, at, out), n);
    write(f, p.out, at, n, out);
  });
}

void activate_grad(const ActivateGrad& p, Stream s) {
  require_same("activate_grad", {"x", p.x}, {{"dout", p.dout}, {"dx", p.dx}});
  require_numel("activate_grad", p.x.numel(), {{"dx", p.dx}});
  const int64_t cols = p.dout.shape.cols(), rows = rows_of("activate_grad", p.x, p.dout, p.gated);
  const Simd& f = simd();
  const auto grad = f.activate_grad[static_cast<size_t>(p.kind)];
  each_chunk(s, rows, cols, p.gated, [&](int64_t at, int64_t in, int64_t n) {
    float gate[kChunk], up[kChunk], dout[kChunk], dgate[kChunk], dup[kChunk];
    grad(read(f, p.x, in, n, gate), p.gated ? read(f, p.x, in + cols, n, up) : nullptr, read(f, p.dout, at, n, dout),
         target(p.dx, in, dgate), p.gated ? target(p.dx, in + cols, dup) : nullptr, n);
    write(f, p.dx, in, n, dgate);
    if (p.gated) write(f, p.dx, in + cols, n, dup);
  });
}

}  // namespace gt::cpu
