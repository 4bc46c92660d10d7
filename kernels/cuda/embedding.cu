// Token and position embeddings. The token gradient sorts positions by table row on the device (stable LSD radix sort,
// integers only). Each row is then summed in ascending position order, without float atomics. One warp sums one row and
// channel tile; rows with more than 64 positions are summed by whole blocks in fixed chunks of 64.
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/scan.cuh"
#include "kernels/cuda/table.h"
#include "kernels/cuda/vec.cuh"

namespace gt::cuda {

namespace {

// Copies rows in words of the widest size that divides them.
template <class Word>
__global__ void __launch_bounds__(256) embedding_kernel(const int32_t* tokens, const Word* table, Word* out, int64_t n,
                                                        int64_t words, int64_t rows, int64_t first_row) {
  const int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (i >= n * words) return;
  const int64_t row = tokens[i / words] - first_row;
  out[i] = row >= 0 && row < rows ? table[row * words + i % words] : Word{};
}

template <int V, class T, class U>
__global__ void __launch_bounds__(256)
    add_position_kernel(T* x, const U* pos, int64_t packs, int64_t cols, Positions rows) {
  const int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (i >= packs) return;
  const int64_t row = i * V / cols, col = i * V % cols;
  float a[V], b[V];
  load<V>(x + i * V, a);
  load<V>(pos + rows.position(row) * cols + col, b);
#pragma unroll
  for (int j = 0; j < V; ++j) a[j] += b[j];
  store<V>(x + i * V, a);
}

template <int V, class T, class G>
__global__ void __launch_bounds__(256) position_grad_kernel(const T* dout, G* dpos, int64_t packs, int64_t cols,
                                                            int64_t batch, Positions rows, bool accumulate) {
  const int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (i >= packs) return;
  const int64_t p = rows.row_at(i * V / cols), col = i * V % cols;
  const bool inside = p >= 0;
  if (!inside && accumulate) return;
  float s[V] = {};
  if (inside) {
#pragma unroll 4
    for (int64_t b = 0; b < batch; ++b) {
      float d[V];
      load<V>(dout + (b * rows.seq + p) * cols + col, d);
#pragma unroll
      for (int j = 0; j < V; ++j) s[j] += d[j];
    }
  }
  if (accumulate) {
    float old[V];
    load<V>(dpos + i * V, old);
#pragma unroll
    for (int j = 0; j < V; ++j) s[j] = old[j] + s[j];
  }
  store<V>(dpos + i * V, s);
}

// ---- stable radix sort of (row, position) by row: tiles of 1024 items, one warp per tile, 9 bits per pass
// ----------------
constexpr int kTile = 1024, kBits = 9, kBins = 1 << kBits;

__global__ void __launch_bounds__(256)
    keys_kernel(const int32_t* tokens, int32_t* key, int32_t* position, int64_t n, int64_t rows, int64_t first_row) {
  const int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (i >= n) return;
  const int64_t row = tokens[i] - first_row;
  key[i] = static_cast<int32_t>(row >= 0 && row < rows ? row : rows);  // `rows`: not in this table, sorts last
  position[i] = static_cast<int32_t>(i);
}

// counts[bin][tile]
__global__ void __launch_bounds__(256)
    histogram_kernel(const int32_t* key, int32_t* counts, int64_t n, int tiles, int shift) {
  __shared__ int32_t bins[kBins];
  for (int b = threadIdx.x; b < kBins; b += 256) bins[b] = 0;
  __syncthreads();
  const int64_t begin = int64_t{blockIdx.x} * kTile, end = min(n, begin + kTile);
  for (int64_t i = begin + threadIdx.x; i < end; i += 256)
    atomicAdd(&bins[key[i] >> shift & (kBins - 1)], 1);  // integer: order-independent
  __syncthreads();
  for (int b = threadIdx.x; b < kBins; b += 256) counts[int64_t{b} * tiles + blockIdx.x] = bins[b];
}

__global__ void __launch_bounds__(32)
    scatter_kernel(const int32_t* key, const int32_t* position, int32_t* key_out, int32_t* position_out,
                   const int32_t* offsets, int64_t n, int tiles, int shift) {
  __shared__ int32_t next[kBins];
  for (int b = threadIdx.x; b < kBins; b += 32) next[b] = offsets[int64_t{b} * tiles + blockIdx.x];
  __syncwarp();
  const int64_t begin = int64_t{blockIdx.x} * kTile;
  for (int round = 0; round < kTile / 32; ++round) {
    const int64_t i = begin + round * 32 + threadIdx.x;
    const bool live = i < n;
    const int32_t k = live ? key[i] : 0;
    const int bin = live ? k >> shift & (kBins - 1) : kBins;  // lanes past the end share a bin of their own
    const unsigned same = __match_any_sync(kAllLanes, bin);
    const int rank = __popc(same & ((1u << threadIdx.x) - 1));
    int32_t to = 0;
    if (live) to = next[bin] + rank;
    __syncwarp();
    if (live && rank == 0) next[bin] += __popc(same);
    __syncwarp();
    if (live) {
      key_out[to] = k;
      position_out[to] = position[i];
    }
  }
}

// Writes begin[row] and end[row] of the sorted list (both zeroed before). long_rows_kernel collects the rows with more
// than kShort positions; the order of `rows_long` varies between runs, but results do not depend on it.
constexpr int kShort = 64;

__global__ void __launch_bounds__(256)
    bounds_kernel(const int32_t* key, int32_t* begin, int32_t* end, int64_t n, int64_t rows) {
  const int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (i >= n || key[i] >= rows) return;
  if (i == 0 || key[i - 1] != key[i]) begin[key[i]] = static_cast<int32_t>(i);
  if (i + 1 == n || key[i + 1] != key[i]) end[key[i]] = static_cast<int32_t>(i + 1);
}

__global__ void __launch_bounds__(256)
    long_rows_kernel(const int32_t* begin, const int32_t* end, int32_t* rows_long, int32_t* count, int64_t rows) {
  const int64_t r = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (r < rows && end[r] - begin[r] > kShort) rows_long[atomicAdd(count, 1)] = static_cast<int32_t>(r);
}

template <int V, class T>
__device__ inline void sum_positions(const T* dout, const int32_t* position, int begin, int end, int64_t cols,
                                     int64_t col, float (&s)[V]) {
#pragma unroll 4
  for (int i = begin; i < end; ++i) {
    float d[V];
    load<V>(dout + position[i] * cols + col, d);
#pragma unroll
    for (int j = 0; j < V; ++j) s[j] += d[j];
  }
}

template <int V, class G>
__device__ inline void put(G* to, float (&s)[V], bool accumulate) {
  if (accumulate) {
    float old[V];
    load<V>(to, old);
#pragma unroll
    for (int j = 0; j < V; ++j) s[j] = old[j] + s[j];
  }
  store_at_once<V>(to, s);
}

// One warp per (row, tile of 32 * V channels). Rows without positions are zeroed, or kept when accumulating; long rows
// are skipped.
template <int V, class T, class G>
__global__ void __launch_bounds__(256)
    short_rows_kernel(const T* dout, const int32_t* position, const int32_t* begin, const int32_t* end, G* dtable,
                      int64_t rows, int64_t cols, bool accumulate) {
  const int64_t row = int64_t{blockIdx.x} * 8 + threadIdx.x / 32;
  const int64_t col = (int64_t{blockIdx.y} * 32 + threadIdx.x % 32) * V;
  if (row >= rows || col >= cols) return;
  const int b = begin[row], e = end[row];
  if (e - b > kShort || (e == b && accumulate)) return;
  float s[V] = {};
  sum_positions<V>(dout, position, b, e, cols, col, s);
  put<V>(dtable + row * cols + col, s, accumulate);
}

// One block per (long row, tile). Warp w sums chunks w, w + 8, ... of 64 positions; chunk sums are added in order.
template <int V, class T, class G>
__global__ void __launch_bounds__(256)
    long_sums_kernel(const T* dout, const int32_t* position, const int32_t* begin, const int32_t* end,
                     const int32_t* rows_long, const int32_t* count, G* dtable, int64_t cols, bool accumulate) {
  __shared__ float piece[8][32 * V];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t col = (int64_t{blockIdx.y} * 32 + lane) * V;
  for (int k = blockIdx.x; k < *count; k += gridDim.x) {
    const int row = rows_long[k], b = begin[row], e = end[row];
    float total[V] = {};
    for (int at = b; at < e; at += 8 * kShort) {
      const int from = at + warp * kShort;
      float s[V] = {};
      if (from < e && col < cols) sum_positions<V>(dout, position, from, min(e, from + kShort), cols, col, s);
#pragma unroll
      for (int j = 0; j < V; ++j) piece[warp][lane * V + j] = s[j];
      __syncthreads();
      if (warp == 0)
        for (int w = 0; w < 8; ++w)
#pragma unroll
          for (int j = 0; j < V; ++j) total[j] += piece[w][lane * V + j];
      __syncthreads();
    }
    if (warp == 0 && col < cols) put<V>(dtable + row * cols + col, total, accumulate);
  }
}

int bits_of(int64_t x) {
  int bits = 0;
  for (; x > 0; x >>= 1) ++bits;
  return bits;
}

// Positions sorted by row and the bounds of every row, in stream scratch.
struct Sorted {
  const int32_t *position, *begin, *end, *rows_long, *count;
};

Sorted sort_positions(Context& c, const EmbeddingGrad& a, int64_t n, int64_t rows) {
  const int tiles = static_cast<int>(ceil_div(n, kTile));
  ScratchLayout plan;
  const int64_t at_key[2] = {plan.add(4 * n), plan.add(4 * n)}, at_position[2] = {plan.add(4 * n), plan.add(4 * n)};
  const int64_t at_counts = plan.add(int64_t{4} * kBins * tiles), at_long = plan.add(4 * rows);
  const int64_t at_begin = plan.add(4 * rows), at_end = plan.add(4 * rows), at_count = plan.add(4);
  std::byte* base = c.scratch(plan.bytes());
  const auto ints = [&](int64_t at) { return reinterpret_cast<int32_t*>(base + at); };
  // begin, end and count are contiguous: one memset clears them.
  check(cudaMemsetAsync(base + at_begin, 0, static_cast<size_t>(plan.bytes() - at_begin), c.stream), "embedding_grad");

  const auto over = [](int64_t items) { return static_cast<unsigned>(std::max<int64_t>(1, ceil_div(items, 256))); };
  keys_kernel<<<over(n), 256, 0, c.stream>>>(a.tokens.as<int32_t>(), ints(at_key[0]), ints(at_position[0]), n, rows,
                                             a.first_row);
  int from = 0;
  if (tiles > 0) {
    for (int shift = 0; shift < bits_of(rows); shift += kBits, from ^= 1) {
      histogram_kernel<<<static_cast<unsigned>(tiles), 256, 0, c.stream>>>(ints(at_key[from]), ints(at_counts), n,
                                                                           tiles, shift);
      scan_kernel<<<1, 1024, 0, c.stream>>>(ints(at_counts), int64_t{kBins} * tiles);
      scatter_kernel<<<static_cast<unsigned>(tiles), 32, 0, c.stream>>>(
          ints(at_key[from]), ints(at_position[from]), ints(at_key[from ^ 1]), ints(at_position[from ^ 1]),
          ints(at_counts), n, tiles, shift);
    }
  }
  bounds_kernel<<<over(n), 256, 0, c.stream>>>(ints(at_key[from]), ints(at_begin), ints(at_end), n, rows);
  long_rows_kernel<<<over(rows), 256, 0, c.stream>>>(ints(at_begin), ints(at_end), ints(at_long), ints(at_count), rows);
  return {ints(at_position[from]), ints(at_begin), ints(at_end), ints(at_long), ints(at_count)};
}

}  // namespace

void embedding(const Embedding& a, Stream s) {
  const int64_t n = a.tokens.numel();
  if (a.out.numel() == 0) return;
  Context& c = enter(s, "embedding");
  require_dtype("embedding", "tokens", a.tokens, DType::kI32);
  require_dtype("embedding", "out", a.out, a.table.dtype);
  const int64_t cols = a.table.shape.cols(), row_bytes = cols * size_of(a.table.dtype);
  GT_CHECK(a.out.numel() == n * cols, "embedding: table ", to_string(a.table.shape), " out ", to_string(a.out.shape));
  const auto launch = [&](auto word) {
    using Word = decltype(word);
    const int64_t words = row_bytes / static_cast<int64_t>(sizeof(Word));
    embedding_kernel<Word><<<static_cast<unsigned>(ceil_div(n * words, 256)), 256, 0, c.stream>>>(
        a.tokens.as<int32_t>(), a.table.as<Word>(), a.out.as<Word>(), n, words, a.table.shape.rows(), a.first_row);
  };
  if (row_bytes % 16 == 0 && aligned16({a.table.data, a.out.data}))
    launch(uint4{});
  else if (size_of(a.table.dtype) == 4)
    launch(uint32_t{});
  else
    launch(uint16_t{});
  leave(c, "embedding");
}

void embedding_grad(const EmbeddingGrad& a, Stream s) {
  const int64_t n = a.tokens.numel(), rows = a.dtable.shape.rows(), cols = a.dtable.shape.cols();
  if (a.dtable.numel() == 0 || (n == 0 && a.accumulate)) return;
  Context& c = enter(s, "embedding_grad");
  require_dtype("embedding_grad", "tokens", a.tokens, DType::kI32);
  GT_CHECK(a.dout.numel() == n * cols, "embedding_grad: dout ", to_string(a.dout.shape), " for ", n, " tokens of ",
           cols, " channels");
  GT_REQUIRE(n < (int64_t{1} << 31) && rows < (int64_t{1} << 31) - 1, Exit::kUsage, "cuda embedding_grad: ", n,
             " tokens, ", rows, " rows; below 2^31 of each is supported");
  const Sorted list = sort_positions(c, a, n, rows);
  by_dtype("embedding_grad", "dout", a.dout.dtype, [&](auto t) {
    by_gradient("embedding_grad", "dtable", a.dtable.dtype, [&](auto g) {
      using T = decltype(t);
      using G = decltype(g);
      constexpr int kV = 4;  // 16 bytes of f32, 8 of bf16 or f16
      const bool wide = cols % kV == 0 && aligned16({a.dout.data, a.dtable.data});
      const auto tiles = static_cast<unsigned>(ceil_div(cols, 32 * (wide ? kV : 1)));
      auto* one = wide ? short_rows_kernel<kV, T, G> : short_rows_kernel<1, T, G>;
      one<<<dim3(static_cast<unsigned>(ceil_div(rows, 8)), tiles), 256, 0, c.stream>>>(
          a.dout.as<T>(), list.position, list.begin, list.end, a.dtable.as<G>(), rows, cols, a.accumulate);
      const int64_t most = n / (kShort + 1);  // upper bound on the number of long rows
      auto* many = wide ? long_sums_kernel<kV, T, G> : long_sums_kernel<1, T, G>;
      if (most > 0)
        many<<<dim3(static_cast<unsigned>(std::min<int64_t>(most, 1024)), tiles), 256, 0, c.stream>>>(
            a.dout.as<T>(), list.position, list.begin, list.end, list.rows_long, list.count, a.dtable.as<G>(), cols,
            a.accumulate);
    });
  });
  leave(c, "embedding_grad");
}

void add_position(const AddPosition& a, Stream s) {
  if (a.x.numel() == 0) return;
  Context& c = enter(s, "add_position");
  const int64_t cols = a.pos.shape.cols();
  GT_CHECK(a.rows.seq > 0 && a.rows.first >= 0 && a.rows.end(a.x.shape.rows()) <= a.pos.shape.rows(),
           "add_position: x ", to_string(a.x.shape), " seq ", a.rows.seq, " first ", a.rows.first, " pos ",
           to_string(a.pos.shape));
  by_dtype("add_position", "x", a.x.dtype, [&](auto t) {
    using T = decltype(t);
    by_f32_or<T>("add_position", "pos", a.pos.dtype, a.x.dtype, [&](auto u) {
      using U = decltype(u);
      constexpr int kV = kPack<T>;
      const U* pos = a.pos.as<U>();
      const bool wide = cols % kV == 0 && aligned16({a.x.data, pos});
      const int64_t packs = a.x.numel() / (wide ? kV : 1);
      auto* kernel = wide ? add_position_kernel<kV, T, U> : add_position_kernel<1, T, U>;
      kernel<<<static_cast<unsigned>(ceil_div(packs, 256)), 256, 0, c.stream>>>(a.x.as<T>(), pos, packs, cols, a.rows);
    });
  });
  leave(c, "add_position");
}

void position_grad(const PositionGrad& a, Stream s) {
  if (a.dpos.numel() == 0) return;
  Context& c = enter(s, "position_grad");
  const int64_t cols = a.dpos.shape.cols(), seq = a.rows.seq;
  const int64_t batch = seq > 0 ? a.dout.numel() / (seq * cols) : 0;
  GT_CHECK(batch * seq * cols == a.dout.numel() && a.rows.first_row == 0 && a.rows.first >= 0 &&
               a.rows.end(seq) <= a.dpos.shape.rows(),
           "position_grad: dout ", to_string(a.dout.shape), " seq ", seq, " first ", a.rows.first, " dpos ",
           to_string(a.dpos.shape));
  by_dtype("position_grad", "dout", a.dout.dtype, [&](auto t) {
    by_gradient("position_grad", "dpos", a.dpos.dtype, [&](auto g) {
      using T = decltype(t);
      using G = decltype(g);
      constexpr int kV = kPack<T>;
      const bool wide = cols % kV == 0 && aligned16({a.dout.data, a.dpos.data});
      const int64_t packs = a.dpos.numel() / (wide ? kV : 1);
      auto* kernel = wide ? position_grad_kernel<kV, T, G> : position_grad_kernel<1, T, G>;
      kernel<<<static_cast<unsigned>(ceil_div(packs, 256)), 256, 0, c.stream>>>(a.dout.as<T>(), a.dpos.as<G>(), packs,
                                                                                cols, batch, a.rows, a.accumulate);
    });
  });
  leave(c, "position_grad");
}

}  // namespace gt::cuda
