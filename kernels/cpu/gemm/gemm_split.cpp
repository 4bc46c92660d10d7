#include "kernels/cpu/gemm/gemm_split.h"

#include <algorithm>
#include <utility>

namespace gt::cpu {
namespace {

// Most rows or columns of a thread's own tile, of the other operand at a time (more where the inner dimension is
// short), and elements of a block of the inner dimension: a tile of 740 KB, what is split next and two strips stay in
// an L2 cache of 2 MB.
constexpr int64_t kWidth = 160, kStrip = 32, kDepth = 768;
static_assert(kStrip == 2 * kSplitLines);  // what the kernel multiplies at a time

int64_t parts(int64_t n, int64_t size) { return (n + size - 1) / size; }

}  // namespace

std::optional<SplitProduct> SplitProduct::of(const Gemm& g, int64_t m, int64_t n, int64_t k, int threads, bool staged) {
  SplitProduct p;
  p.product_ = native_split_gemm();
  if (p.product_ == nullptr || g.a.dtype != DType::kF32) return {};
  p.shared_ = {g.a.as<float>(), g.trans_a ? m : k, m, true, g.trans_a};
  p.own_ = {g.b.as<float>(), g.trans_b ? k : n, n, false, !g.trans_b};
  if (m > n) std::swap(p.shared_, p.own_);
  p.k_ = k, p.n_ = n, p.staged_ = staged;
  p.simd_ = &simd();
  p.chain_ = parts(parts(k, parts(k, kDepth)), kSplitStep) * kSplitStep;
  p.depth_ = staged ? parts(k, kSplitStep) * kSplitStep : p.chain_;  // in place, blocks are added in the result itself
  p.strip_ = std::max<int64_t>(1, kDepth / p.chain_) * kStrip;
  const int64_t tiles = parts(parts(p.own_.count, kWidth), threads) * threads;  // equally many for all threads
  p.width_ = std::min(kWidth, parts(parts(p.own_.count, tiles), kStrip) * kStrip);
  return p;
}

void SplitProduct::split(const Operand& x, int64_t first, int64_t count, const Block& block, uint32_t* to) const {
  const float* at = x.x + (x.columns ? first + block.first * x.stride : first * x.stride + block.first);
  const auto split = x.columns ? simd_->split_columns : simd_->split_rows;
  split(at, x.stride, count, block.depth, x.left, block.tile(), to);
}

// What split() of the tile of own_ from `first` on will read.
Upcoming SplitProduct::source(int64_t first, const Block& block) const {
  const Operand& x = own_;
  const int64_t width = std::min(width_, x.count - first);
  if (x.columns)
    return {.at = x.x + first + block.first * x.stride, .stride = x.stride, .rows = block.depth, .width = width};
  return {.at = x.x + first * x.stride + block.first, .stride = x.stride, .rows = width, .width = block.depth};
}

// The results of a tile of own_ and a strip of shared_; nothing behind the last strip.
GemmTile SplitProduct::tile_at(int64_t own, int64_t shared) const {
  const int64_t width = std::min(width_, own_.count - own);
  const int64_t strip = std::clamp(shared_.count - shared, int64_t{0}, strip_);
  return shared_.left ? GemmTile{shared, own, strip, width} : GemmTile{own, shared, width, strip};
}

// Strips of the tile of own_ from `at` on. done(tile, result): nothing before the last block.
void SplitProduct::run_tile(int64_t at, Upcoming after, const Block& block, const Memory& memory,
                            FunctionRef<void(const GemmTile&, float*)> done) const {
  const auto result = [&](const GemmTile& t) { return staged_ ? memory.c : memory.c + t.row * n_ + t.col; };
  Upcoming next[3];
  next[1] = after;
  for (int64_t s = 0; s < shared_.count; s += strip_) {
    const GemmTile t = tile_at(at, s), below = tile_at(at, s + strip_);
    const uint32_t *own = memory.own, *shared = memory.shared + s / kSplitLines * block.tile();
    next[0] = {.at = reinterpret_cast<const float*>(shared + strip_ / kSplitLines * block.tile()),
               .rows = below.rows > 0 && below.cols > 0 ? 1 : 0,
               .width = strip_ / kSplitLines * block.tile()};
    next[2] = {.at = result(below), .stride = n_, .rows = staged_ ? 0 : below.rows, .width = below.cols};
    if (!shared_.left) std::swap(own, shared);
    const int64_t ldc = staged_ ? t.cols : n_, chain = chain_ / kSplitStep;
    for (int64_t step = 0; step < block.steps(); step += chain) {
      const bool adds = memory.adds || step > 0;
      product_(t.rows, t.cols, std::min(chain, block.steps() - step), shared + step * kSplitTile, block.tile(),
               own + step * kSplitTile, block.tile(), adds ? memory.sum : result(t), adds ? t.cols : ldc, next);
      for (int64_t r = 0; adds && r < t.rows; ++r)
        simd_->add(result(t) + r * ldc, memory.sum + r * t.cols, result(t) + r * ldc, t.cols);
    }
    done(t, result(t));
  }
}

void SplitProduct::run(float* c, bool more, GemmCache& cache, ThreadPool& pool,
                       FunctionRef<void(int, const GemmTile&, float*)> done) const {
  constexpr int kSlot = 1;  // of GemmCache::converted
  for (int64_t first = 0; first < k_; first += depth_) {
    const Block block{first, std::min(depth_, k_ - first)};
    const auto pairs_of = [&](int64_t count) { return parts(count, kSplitLines) * block.tile(); };
    auto* shared = reinterpret_cast<uint32_t*>(cache.converted(kSlot, pairs_of(shared_.count)));
    pool.parallel_for(parts(shared_.count, kStrip), 1, [&](int64_t begin, int64_t end, int) {
      const int64_t from = begin * kStrip, to = std::min(end * kStrip, shared_.count);
      split(shared_, from, to - from, block, shared + pairs_of(from));
    });
    pool.parallel_for(parts(own_.count, width_), 1, [&](int64_t begin, int64_t end, int thread) {
      auto* own = reinterpret_cast<uint32_t*>(cache.columns(thread, pairs_of(width_) * size_of(DType::kF32)));
      const Memory memory{shared, own, staged_ ? cache.tile(thread, width_ * strip_) : c,
                          cache.addend(thread, width_ * strip_), more || first > 0};
      const HeldTiles held;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t at = i * width_;
        split(own_, at, std::min(width_, own_.count - at), block, own);
        run_tile(at, i + 1 < end ? source(at + width_, block) : Upcoming{}, block, memory,
                 [&](const GemmTile& t, float* z) {
                   if (first + depth_ >= k_) done(thread, t, z);
                 });
      }
    });
  }
}

}  // namespace gt::cpu
