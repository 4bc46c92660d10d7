// GEMM on the CPU. The result is split into tiles of fixed size, distributed over the pool; one thread computes each
// tile, with our own kernel (f32 with AVX-512) or a oneDNN one, and the epilogue (GELU, rounding) runs while it is in
// cache. The inner dimension is split over threads in small weight gradients only, in blocks that its length determines
// (gemm_gradient.h), so the bits of an element depend on the shapes alone. bf16 is multiplied natively where supported
// (AVX-512 BF16, AMX), by our own kernel from blocks in pairs, or by oneDNN's for odd sizes; with AMX f32 is too, in
// parts of bf16 (gemm_split.h). Otherwise 16-bit operands are widened to f32 first: versioned weights once per version,
// or panel by panel in the cache of the thread that uses them.
#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "kernels/cpu/check_args.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/gemm/gemm_cache.h"
#include "kernels/cpu/gemm/gemm_gradient.h"
#include "kernels/cpu/gemm/gemm_pairs.h"
#include "kernels/cpu/gemm/gemm_result.h"
#include "kernels/cpu/gemm/gemm_rows.h"
#include "kernels/cpu/gemm/gemm_split.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/signals_blocked.h"
#include "kernels/cpu/simd/cast_16bit.h"
#include "kernels/cpu/simd/isa.h"

namespace gt::cpu {

namespace {

// Rows per tile of our own kernel where m allows it: whole register tiles of 6 rows, and whole blocks of sums.
constexpr int64_t kDirectRows = 96;
static_assert(kTileRows % kSumBlock == 0 && kDirectRows % kSumBlock == 0);

// One call: operands as plain pointers and strides, after conversion.
struct Job : GemmResult {
  int64_t k = 0, tile_rows = kTileRows, panel = 0;
  const std::byte *a = nullptr, *b = nullptr;
  DType in = DType::kF32;             // dtype of the oneDNN matmul
  bool converted = false;             // a and b have another dtype
  bool direct = false;                // tiles are computed by Simd::gemm_block, not by oneDNN
  bool long_blocks = false;           // direct: see block_depth
  std::optional<PairedGemm> pairs;    // computes tiles of bf16
  std::optional<SplitProduct> split;  // computes all of f32 in parts of bf16
  bool pack = false;                  // b is read from a packed copy
  bool own_panels = false;            // direct: each thread packs the panel that it uses, which stays in its L2 cache
  int64_t version = 0;                // version of that copy; 0: repacked at every call
  const PackedMatrix* packed = nullptr;
  const float* panels = nullptr;        // the packed copy, if direct
  const TileKernel* kernel[2][2] = {};  // [last row tile is short][last panel is narrow]
};

void validate(const Gemm& g, int64_t m, int64_t n, int64_t k) {
  const auto shapes = [&] {
    return cat("a ", to_string(g.a.shape), g.trans_a ? " transposed" : "", ", b ", to_string(g.b.shape),
               g.trans_b ? " transposed" : "", ", out ", to_string(g.out.shape));
  };
  GT_CHECK(g.a.shape.cols() == (g.trans_a ? m : k) && g.a.numel() == m * k && g.b.shape.cols() == (g.trans_b ? k : n) &&
               g.b.numel() == k * n,
           "gemm shapes do not fit: ", shapes());
  require_same("gemm", {"a", g.a}, {{"b", g.b}});
  require_same_or_f32("gemm", {"a", g.a}, {{"bias", g.bias}});
  if (g.out.dtype != g.a.dtype) require_gradient("gemm", {{"out", g.out}});
  GT_CHECK(!g.bias || g.bias.numel() == n, "gemm bias ", to_string(g.bias.shape), " for ", shapes());
  GT_CHECK(!g.accumulate || (!g.bias && g.epilogue == Epilogue::kNone), "gemm: bias and epilogue exclude accumulate");
  if (g.epilogue != Epilogue::kNone) {
    GT_CHECK(g.aux && g.aux.numel() == m * n, "gemm aux ", to_string(g.aux.shape), " for ", shapes());
    require_same_or_f32("gemm", {"a", g.a}, {{"aux", g.aux}});
  }
  if (g.squares) {
    GT_CHECK(g.trans_a && g.epilogue == Epilogue::kNone && g.squares.numel() == 1, "gemm squares ",
             to_string(g.squares.shape), " for ", shapes());
    require_dtype("gemm", DType::kF64, {{"squares", g.squares}});
  }
  if (!g.dbias) return;
  const bool of_out = g.epilogue == Epilogue::kGeluGrad;
  GT_CHECK(of_out != g.trans_a && g.epilogue != Epilogue::kGelu && g.dbias.numel() == (of_out ? n : m), "gemm dbias ",
           to_string(g.dbias.shape), " for ", shapes());
  require_gradient("gemm", {{"dbias", g.dbias}});
}

// Copies columns [row, row + rows) of a, stored [k, m], to a dense [k, rows] with leading dimension kColumnsLd, in the
// matmul's dtype.
constexpr int64_t kColumnsLd = kTileRows + kPadding;
void* copy_columns(const Job& job, std::byte* to, int64_t row, int64_t rows) {
  const int64_t size = size_of(job.in);
  for (int64_t p = 0; p < job.k; ++p) {
    const int64_t at = p * job.m + row;
    if (job.converted) {
      read(*job.simd, job.op->a, at, rows, reinterpret_cast<float*>(to) + p * kColumnsLd);
    } else {
      std::memcpy(to + p * kColumnsLd * size, job.a + at * size, static_cast<size_t>(rows * size));
    }
  }
  return to;
}

// A tile of the result.
struct Tile : GemmTile {
  int64_t row_tile, panel;
};

// By rows: the copied columns of a row tile are reused for all panels, and a direct job reads the larger operand once.
// By panels: a panel is reused for all row tiles while in cache.
bool by_rows(const Job& job) { return job.direct ? job.m >= job.n && !job.own_panels : job.op->trans_a; }
int64_t row_tiles(const Job& job) { return (job.m + job.tile_rows - 1) / job.tile_rows; }
int64_t panels(const Job& job) { return (job.n + job.panel - 1) / job.panel; }

Tile tile_at(const Job& job, int64_t i) {
  Tile t{};
  if (by_rows(job)) {
    t.row_tile = i / panels(job), t.panel = i % panels(job);
  } else {
    t.row_tile = i % row_tiles(job), t.panel = i / row_tiles(job);
  }
  t.row = t.row_tile * job.tile_rows, t.col = t.panel * job.panel;
  t.rows = std::min(job.tile_rows, job.m - t.row), t.cols = std::min(job.panel, job.n - t.col);
  return t;
}

// b's columns from some column on, for a direct job: row p begins at b + p * ld.
struct Panel {
  const float* b;
  int64_t ld;
};

// Tiles [begin, end) of one thread; columns of a transposed a are copied once per row tile.
class Worker {
 public:
  Worker(const Job& job, GemmCache& cache, int thread, int64_t begin, int64_t end)
      : job_(job), cache_(cache), thread_(thread), begin_(begin), end_(end) {}
  void run();

 private:
  void run_tile(int64_t i);
  void* a_of(const Tile& t);
  Panel panel_of(const Tile& t);
  void multiply(int64_t i, const Tile& t, float* c, int64_t ldc, bool more);
  void run_pairs(int64_t i, const Tile& t);
  void find_upcoming(int64_t i, Upcoming* next) const;
  const Job& job_;
  GemmCache& cache_;
  const int thread_;
  const int64_t begin_, end_;
  int64_t copied_ = -1;  // row tile whose columns, or panel of b, that are in cache_.columns
};

std::byte* at(const std::byte* p, int64_t bytes) { return const_cast<std::byte*>(p) + bytes; }

void* Worker::a_of(const Tile& t) {
  const int64_t size = size_of(job_.in);
  if (!job_.op->trans_a) return at(job_.a, t.row * job_.k * size);
  std::byte* columns = cache_.columns(thread_, job_.k * kColumnsLd * size);
  if (std::exchange(copied_, t.row_tile) != t.row_tile) copy_columns(job_, columns, t.row, t.rows);
  return columns;
}

// Elements of the inner dimension in the next block, of `left`. A block is one fma chain per element of the result, and
// blocks are added in order. The lengths are those of oneDNN's kernels, so both are bitwise identical (except for
// single rows or columns): brgemm for dense results, a classic blocked GEMM otherwise.
int64_t block_depth(const Job& job, int64_t left) {
  if (job.long_blocks) return std::min<int64_t>(left, job.k <= 1024 ? 512 : 1024);
  return gradient_block(left);
}

Panel panel_at(const Job& job, int64_t col) {
  if (job.panels) return {job.panels + col * job.k, kRowsPanel};
  return {reinterpret_cast<const float*>(job.b) + col, job.n};
}

Panel Worker::panel_of(const Tile& t) {
  if (!job_.own_panels) return panel_at(job_, t.col);
  auto* panel = reinterpret_cast<float*>(cache_.columns(thread_, job_.k * kRowsPanel * size_of(DType::kF32)));
  if (std::exchange(copied_, t.panel) != t.panel)
    pack_columns(job_.op->b, job_.k, job_.n, job_.op->trans_b, t.col, t.cols, panel);
  return {panel, kRowsPanel};
}

// Share `part` of `parts` of what a row tile reads of a, or all tiles of a panel of b. Nothing if the whole would evict
// what is in use.
Upcoming upcoming(const Job& job, bool of_a, int64_t tile, int64_t part, int64_t parts) {
  constexpr int64_t kMost = 1 << 16;  // floats
  Upcoming u{.stride = kRowsPanel, .width = kRowsPanel};
  if (of_a) {
    const int64_t row = tile * job.tile_rows, floats = std::min(job.tile_rows, job.m - row) * job.k;
    u.at = reinterpret_cast<const float*>(job.a) + row * job.k, u.rows = (floats + kRowsPanel - 1) / kRowsPanel;
  } else if (job.own_panels && job.op->trans_b) {  // rows of the weight
    const int64_t col = tile * job.panel, row_bytes = job.k * size_of(job.op->b.dtype);
    u.at = reinterpret_cast<const float*>(job.op->b.data + col * row_bytes);
    u.rows = std::min(job.panel, job.n - col) * row_bytes / (kRowsPanel * size_of(DType::kF32));
  } else if (!job.own_panels || job.op->b.dtype == DType::kF32) {
    const Panel panel = panel_at(job, tile * job.panel);
    u.at = panel.b, u.stride = panel.ld, u.rows = job.k;
  }
  if (u.rows * kRowsPanel > kMost) return {};
  const int64_t first = u.rows * part / parts;
  u.at += first * u.stride, u.rows = u.rows * (part + 1) / parts - first;
  return u;
}

// What the tiles after i read, that is those before it: see run(). Tiles of one row tile, or one panel, follow each
// other: what the next one reads is prefetched during all of them, and what the first ones read of the other operand
// just before its first use.
void Worker::find_upcoming(int64_t i, Upcoming* next) const {
  const bool rows_first = by_rows(job_);
  const int64_t count = rows_first ? panels(job_) : row_tiles(job_), outer = i / count, inner = i % count;
  if (outer * count > begin_) next[0] = upcoming(job_, rows_first, outer - 1, count - 1 - inner, count);
  if (i >= end_ - count && i > begin_) next[1] = upcoming(job_, !rows_first, (inner + count - 1) % count, 0, 1);
}

// Computes tile i of a direct job in c, rows `ldc` apart, bias included. `more`: adds to c.
void Worker::multiply(int64_t i, const Tile& t, float* c, int64_t ldc, bool more) {
  constexpr int64_t kDepth = 512;  // elements of the inner dimension whose rows of b stay in the L2 cache
  const Simd& f = *job_.simd;
  const float* a = reinterpret_cast<const float*>(job_.a) + t.row * job_.k;
  const auto [b, ldb] = panel_of(t);
  float* sum = cache_.addend(thread_, job_.tile_rows * kRowsPanel);
  Upcoming next[2];
  find_upcoming(i, next);
  for (int64_t block = 0, end = 0; block < job_.k; block = end) {
    end = block + block_depth(job_, job_.k - block);
    const bool adds = more || block > 0;
    float* z = adds ? sum : c;
    const int64_t ldz = adds ? kRowsPanel : ldc;
    for (int64_t p = block; p < end; p += kDepth)
      f.gemm_block(t.rows, t.cols, std::min(kDepth, end - p), a + p, job_.k, 1, b + p * ldb, ldb, z, ldz, p > block,
                   next);
    for (int64_t r = 0; adds && r < t.rows; ++r) f.add(c + r * ldc, z + r * ldz, c + r * ldc, t.cols);
  }
  job_.add_bias(t, c, ldc);
}

// `rows` rows of `cols` elements of t, `stride` elements apart, from element `at` on.
Upcoming rows_of(const Tensor& t, int64_t at, int64_t stride, int64_t rows, int64_t cols) {
  const int64_t size = size_of(t.dtype);
  return {.at = reinterpret_cast<const float*>(t.data + at * size),
          .stride = stride * size / 4,
          .rows = rows,
          .width = cols * size / 4};
}

// The whole tile by products of bf16 pairs.
void Worker::run_pairs(int64_t i, const Tile& t) {
  const Gemm& g = *job_.op;
  const PairedGemm& p = *job_.pairs;
  auto* scratch = reinterpret_cast<uint32_t*>(cache_.columns(thread_, p.scratch_pairs() * size_of(DType::kF32)));
  if (g.trans_a && std::exchange(copied_, t.row_tile) != t.row_tile) p.turn(t.row, t.rows, scratch);
  const int64_t ldc = job_.staged ? t.cols : job_.n, staged = p.staged_rows() * job_.panel;
  float* tile = job_.staged ? cache_.tile(thread_, staged + job_.panel) : nullptr;
  const auto find_next = [&](const GemmTile& rows, Upcoming* next) {
    if (!job_.staged || job_.streams) return;
    const int64_t at = rows.row * job_.n + t.col;
    next[0] = rows_of(g.out, at, job_.n, rows.rows, t.cols);
    if (g.epilogue == Epilogue::kGeluGrad) next[1] = rows_of(g.aux, at, job_.n, rows.rows, t.cols);
  };
  const auto done = [&](const GemmTile& rows, float* z) {
    job_.add_bias(rows, z, ldc);
    job_.complete(rows, z, job_.staged ? tile + staged : nullptr);
  };
  const Tile after = i > begin_ ? tile_at(job_, i - 1) : Tile{};
  const PairedGemm::Output to{job_.staged ? tile : job_.in_place(t.row, t.col), ldc, g.accumulate && !job_.staged,
                              job_.staged};
  p.multiply(t, i > begin_ ? &after : nullptr, scratch, to, find_next, done);
}

// From the last tile to the first: the op before has computed the last rows last, so these are in cache.
void Worker::run() {
  for (int64_t i = end_ - 1; i >= begin_; --i) run_tile(i);
}

void Worker::run_tile(int64_t i) {
  const Gemm& g = *job_.op;
  const Tile t = tile_at(job_, i);
  if (g.dbias && g.trans_a && t.panel == 0)
    sum_row_blocks(*job_.simd, g.a, t.row, job_.m, job_.k, g.dbias, t.row, t.rows, g.accumulate_dbias);
  if (job_.pairs) return run_pairs(i, t);
  float* tile = job_.staged ? cache_.tile(thread_, (job_.tile_rows + 1) * job_.panel) : nullptr;
  float* c = job_.staged ? tile : job_.in_place(t.row, t.col);
  if (job_.direct) {
    multiply(i, t, c, job_.staged ? t.cols : job_.n, g.accumulate && !job_.staged);
  } else {
    const TileKernel& kernel = *job_.kernel[t.rows != job_.tile_rows][t.cols != job_.panel];
    void* b = job_.packed ? nullptr : at(job_.b, t.col * (g.trans_b ? job_.k : 1) * size_of(job_.in));
    float* bias = g.bias ? const_cast<float*>(job_.bias) + t.col : nullptr;
    kernel.run(thread_, cache_.stream(thread_), a_of(t), b, job_.packed ? job_.packed->panel(t.panel) : nullptr, bias,
               c, cache_.scratchpad(thread_, kernel.scratchpad_bytes()));
  }
  job_.complete(t, tile, job_.staged ? tile + job_.tile_rows * job_.panel : nullptr);
}

// k == 0: the product is zero.
void run_empty(const Job& job) {
  const Gemm& g = *job.op;
  if (g.accumulate) return;
  const auto number = [&](const Tensor& t, int64_t i) {
    float x;
    return *read(*job.simd, t, i, 1, &x);
  };
  const auto put = [&](const Tensor& t, int64_t i, float x) {
    *target(t, i, &x) = x;
    write(*job.simd, t, i, 1, &x);
  };
  for (int64_t i = 0; i < job.m * job.n; ++i) {
    float z = g.bias ? number(g.bias, i % job.n) : 0.0f;
    if (g.epilogue == Epilogue::kGelu) {
      put(g.aux, i, z);
      z = number(g.aux, i);
      gelu(*job.simd, &z, &z, 1);
    } else if (g.epilogue == Epilogue::kGeluGrad) {
      const float x = number(g.aux, i);
      gelu_grad(*job.simd, &x, &z, 1);
    }
    put(g.out, i, z);
  }
}

enum Slot { kSlotA, kSlotB, kSlotBias, kSlotSums };  // index of GemmCache::converted

// The whole tensor as f32.
const float* as_f32(const Job& job, const Tensor& t, CpuContext& context, Slot slot) {
  if (t.dtype == DType::kF32) return t.as<float>();
  float* to = context.gemm().converted(slot, t.numel());
  context.pool.parallel_for(
      t.numel(), 16384, [&](int64_t begin, int64_t end, int) { read(*job.simd, t, begin, end - begin, to + begin); });
  return to;
}

const std::byte* operand(const Job& job, const Tensor& t, CpuContext& context, Slot slot) {
  return job.converted ? reinterpret_cast<const std::byte*>(as_f32(job, t, context, slot)) : t.data;
}

// Columns per panel: fixed by the shape.
int64_t panel_columns(const Gemm& g, int64_t n) {
  const int64_t most = g.trans_a ? 768 : 256;
  return std::min(n, most);
}

// Picks kernels for full and partial tiles. Returns false if oneDNN has no fast one for some of them.
bool pick_kernels(Job& job, GemmCache& cache, bool packed) {
  const Gemm& g = *job.op;
  bool fast = true;
  for (const bool short_rows : {false, true}) {
    for (const bool narrow : {false, true}) {
      const int64_t rows = short_rows ? job.m % job.tile_rows : job.tile_rows;
      const int64_t cols = narrow ? job.n % job.panel : job.panel;
      const bool used = rows > 0 && cols > 0 && (short_rows || job.m >= job.tile_rows);
      if (!used) continue;
      const TileKernel& kernel = cache.kernel({.m = rows,
                                               .n = cols,
                                               .k = job.k,
                                               .lda = g.trans_a ? kColumnsLd : job.k,
                                               .ldb = packed      ? 0
                                                      : g.trans_b ? job.k
                                                                  : job.n,
                                               .ldc = job.staged ? cols : job.n,
                                               .in = job.in,
                                               .trans_a = g.trans_a,
                                               .trans_b = !packed && g.trans_b,
                                               .packed = packed,
                                               .bias = static_cast<bool>(g.bias),
                                               .accumulate = g.accumulate && !job.staged});
      job.kernel[short_rows][narrow] = &kernel;
      fast &= !kernel.reference();
    }
  }
  return fast;
}

// AVX-512: oneDNN's block kernels (brgemm) reach peak throughput, but need dense results and copy a transposed b once
// per tile. So tiles are staged in scratch, and made taller when there are many rows.
void stage_wide_tiles(Job& job, GemmCache& cache) {
  if (current_isa() < Isa::kAvx512 || job.in != DType::kF32 || job.op->trans_a) return;
  const bool was_staged = std::exchange(job.staged, true);
  job.tile_rows = job.m >= 8 * kTileRows ? 4 * kTileRows : job.m >= 2 * kTileRows ? 2 * kTileRows : kTileRows;
  if (pick_kernels(job, cache, false)) return;
  job.staged = was_staged;
  job.tile_rows = kTileRows;
  pick_kernels(job, cache, false);
}

// Chooses our own kernel where it is at least as fast as oneDNN's: f32 arithmetic with AVX-512, b in packed panels or
// small enough to be read from the L2 cache row by row. It writes f32 tiles to their place and packs a transposed b in
// registers.
bool choose_direct(Job& job, const GemmCache& cache) {
  constexpr int64_t kPage = 4096, kSmall = 1 << 17, kSmallGradient = 1 << 16;  // floats
  const Gemm& g = *job.op;
  if (current_isa() < Isa::kAvx512 || cache.layout_forced() || job.in != DType::kF32) return false;
  if (g.trans_a) {
    if (job.converted || job.has_16bit_result || g.trans_b || g.bias || g.epilogue != Epilogue::kNone ||
        job.m * job.n > kSmallGradient)
      return false;
  } else if (job.converted) {
    if (job.m < kTileRows) return false;
    job.pack = true;
  } else if (g.trans_b) {
    if (g.b_version == 0 && job.m < kTileRows) return false;
    job.pack = true;
  } else {
    job.pack = g.b_version > 0 && job.n * 4 % kPage == 0;  // rows a multiple of a page apart share cache sets
    if (!job.pack && job.k * job.n > kSmall) return false;
  }
  job.direct = true;
  job.long_blocks = g.trans_b || (!g.trans_a && job.n <= 256);
  job.staged = job.has_16bit_result || (g.accumulate && job.long_blocks);
  job.panel = kRowsPanel;
  if (!g.trans_a && (job.m % kDirectRows == 0 || job.m >= 16 * kDirectRows)) job.tile_rows = kDirectRows;
  // Tiles of a panel follow each other: packing it in the cache costs less than a copy of the weight in memory.
  job.own_panels = job.pack && (job.converted || !by_rows(job)) && job.m >= 4 * kTileRows;
  return true;
}

// Whether to write a weight gradient past the caches, where it would not stay until the optimizer reads it: its lines
// need not be read first.
bool streams_result(const Gemm& g) {
  constexpr int64_t kInCaches = 1 << 20;
  return g.trans_a && !g.accumulate && g.out.dtype == DType::kF32 && g.out.numel() > kInCaches &&
         reinterpret_cast<uintptr_t>(g.out.data) % 64 == 0;
}

// Whether squares are summed tile by tile: in tiles that nothing is done with after.
bool sums_squares(const Job& job) {
  return job.op->squares && (job.pairs || job.split) && (!job.staged || job.streams);
}

// Chooses products of bf16 pairs: oneDNN's kernels need copies of the weights, and copy the operands of gradients in
// every tile.
bool choose_pairs(Job& job, const GemmCache& cache) {
  if (cache.layout_forced()) return false;
  job.pairs = PairedGemm::of(*job.op, job.m, job.n, job.k, cache.threads());
  if (!job.pairs) return false;
  job.in = DType::kBF16, job.converted = false;
  job.streams = streams_result(*job.op);
  job.staged = job.has_16bit_result || job.streams;
  job.tile_rows = job.pairs->tile_rows, job.panel = job.pairs->tile_columns;
  return true;
}

// Chooses products of f32 in parts of bf16, whatever the size: elements are bitwise identical in every shape.
bool choose_split(Job& job, const GemmCache& cache) {
  if (cache.layout_forced()) return false;
  job.split = SplitProduct::of(*job.op, job.m, job.n, job.k, cache.threads(), job.has_16bit_result);
  job.staged = job.has_16bit_result;
  return job.split.has_value();
}

// Everything that shapes, dtypes and the processor determine.
Job prepare(const Gemm& g, GemmCache& cache) {
  Job job;
  job.op = &g;
  job.m = g.out.shape.rows(), job.n = g.out.shape.cols();
  job.k = g.trans_a ? g.a.numel() / job.m : g.a.shape.cols();
  validate(g, job.m, job.n, job.k);
  job.simd = &simd();
  job.version = g.b_version;
  const bool native = g.a.dtype == DType::kF32 || (g.a.dtype == DType::kBF16 && multiplies_bf16());
  job.in = native ? g.a.dtype : DType::kF32;
  job.converted = !native;
  job.has_16bit_result = is_16bit(g.out.dtype) || (g.epilogue != Epilogue::kNone && is_16bit(g.aux.dtype));
  if (job.k == 0 || choose_split(job, cache) || choose_pairs(job, cache) || choose_direct(job, cache)) return job;
  // 16-bit tensors use dense f32 tiles, which enable block kernels and packed panels (see stage_wide_tiles).
  job.staged = job.has_16bit_result || (is_16bit(g.a.dtype) && current_isa() >= Isa::kAvx512 && !g.trans_a);
  job.panel = panel_columns(g, job.n);
  const bool used_enough = job.version > 0 || job.m >= kTileRows, convert_once = job.converted && job.version > 0;
  job.pack = used_enough && (convert_once || cache.worth_packing(job.k, job.n, job.panel, g.trans_b, job.in));
  if (!pick_kernels(job, cache, job.pack) && job.pack && !cache.layout_forced())
    pick_kernels(job, cache, job.pack = false);
  if (!job.pack && g.trans_b) stage_wide_tiles(job, cache);
  return job;
}

}  // namespace

int64_t weight_copy_bytes(const Gemm& g) {
  thread_local GemmCache cache(1);
  if (g.out.numel() == 0) return 0;
  const Job job = prepare(g, cache);
  if (!job.pack || job.own_panels || job.version == 0) return 0;
  return job.direct ? ColumnPanels::bytes_of(job.k, job.n) : cache.copy_bytes(job.k, job.n, job.panel, job.in);
}

int64_t held_copy_bytes(Stream stream) { return cpu_context(stream).gemm().kept_bytes(); }

namespace {

// Bias gradient of a call without a GEMM (empty shapes).
void sum_bias(const Gemm& g, Stream s) {
  if (g.dbias) column_sums({.x = g.trans_a ? g.a : g.out, .out = g.dbias, .accumulate = g.accumulate_dbias}, s);
}

// By products of f32 in parts.
void run_split(const Job& job, GemmCache& cache, ThreadPool& pool) {
  const Gemm& g = *job.op;
  if (g.dbias && g.trans_a)
    pool.parallel_for((job.m + kTileRows - 1) / kTileRows, 1, [&](int64_t begin, int64_t end, int) {
      const int64_t row = begin * kTileRows, rows = std::min(end * kTileRows, job.m) - row;
      sum_row_blocks(*job.simd, g.a, row, job.m, job.k, g.dbias, row, rows, g.accumulate_dbias);
    });
  const bool adds = g.accumulate && !job.staged;
  job.split->run(job.in_place(0, 0), adds, cache, pool, [&](int thread, const GemmTile& t, float* z) {
    job.add_bias(t, z, job.staged ? t.cols : job.n);
    job.complete(t, z, job.staged ? cache.addend(thread, t.cols) : nullptr);
  });
}

}  // namespace

void gemm(const Gemm& g, Stream stream) {
  if (g.squares) *g.squares.as<double>() = -1;
  if (g.out.numel() == 0) return sum_bias(g, stream);
  if (g.row_independent) return gemm_by_rows(g, stream);
  CpuContext& context = cpu_context(stream);
  GemmCache& cache = context.gemm();
  Job job = prepare(g, cache);
  if (job.k == 0) {
    run_empty(job);
    return sum_bias(g, stream);
  }
  if (job.direct && g.trans_a) {
    gemm_gradient(g, stream);
    return sum_bias(g, stream);
  }
  job.a = g.trans_a ? g.a.data : operand(job, g.a, context, kSlotA);
  if (g.bias) job.bias = as_f32(job, g.bias, context, kSlotBias);
  if (g.dbias && !g.trans_a) job.sums = cache.converted(kSlotSums, job.sum_blocks() * job.n);
  if (sums_squares(job))
    job.squares = reinterpret_cast<double*>(cache.converted(kSlotSums, 2 * job.square_rows() * job.square_columns()));
  if (job.split) {
    run_split(job, cache, context.pool);
    return job.combine_sums(stream);
  }
  if (job.pairs) {
    if (g.trans_a)
      job.pairs->pair_all(reinterpret_cast<uint32_t*>(cache.converted(kSlotB, job.pairs->all_pairs())), context.pool);
  } else if (job.pack && job.direct && !job.own_panels) {
    job.panels = cache.column_panels(g.b, job.k, job.n, g.trans_b, job.version, context.pool);
  } else if (job.pack && !job.direct) {
    PackedMatrix& copy = cache.copy_of(g.b.data, job.k, job.n, job.panel, g.trans_b, job.in, job.version);
    if (!copy.holds(job.version)) cache.pack(copy, operand(job, g.b, context, kSlotB), job.version, context.pool);
    job.packed = &copy;
  } else {
    job.b = job.own_panels ? g.b.data : operand(job, g.b, context, kSlotB);
  }

  std::optional<SignalsBlocked> here;             // the pool's workers never receive any
  if (!job.direct && !job.pairs) here.emplace();  // only oneDNN's code needs it
  context.pool.parallel_for(row_tiles(job) * panels(job), 1, [&](int64_t begin, int64_t end, int thread) {
    const SingleOpenMpThread single;
    Worker(job, cache, thread, begin, end).run();
  });
  job.combine_sums(stream);
}

}  // namespace gt::cpu
