// GEMMs of experts: tiles of 128 rows of one expert times 128 columns, found from the offsets on the device, so that
// launches depend on shapes alone. Rows are gathered as they are loaded. bf16 and f16 on tensor cores, f32 by fma. Each
// element is summed in ascending k from its expert's first row or from k = 0, in a tile that is always computed whole:
// its bits depend on its own operands alone.
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/table.h"
#include "kernels/cuda/vec.cuh"

namespace gt::cuda {

namespace {

constexpr int kThreads = 256, kTile = 128, kHalf = kTile / 2;
template <class T>
constexpr int kDepth = 64 / static_cast<int>(sizeof(T));  // of a step

// Rows of an operand, with the token's of each slot in place of the row itself where there are slots.
template <class T>
struct Source {
  const T* data;
  int64_t rows, cols;
  const int32_t* slots;
  int32_t top_k;
  bool wide;  // 16 bytes can be moved at once

  __device__ void skip(int64_t count) {
    if (slots != nullptr)
      slots += count;
    else
      data += count * cols;
  }
  __device__ const T* row(int64_t r) const { return data + (slots != nullptr ? slots[r] / top_k : r) * cols; }
};

// A tile in shared memory. kAlong: [128, kDepth], k along its rows; otherwise [kDepth, 128]. Rows are 16 bytes longer,
// so that reads of eight of them are in different banks.
template <class T, bool kAlong>
struct Tile {
  static constexpr int kRows = kAlong ? kTile : kDepth<T>, kCols = kAlong ? kDepth<T> : kTile;
  static constexpr int kPitch = kCols + kPack<T>;

  // Copies what there is from (row, col) of a source, asynchronously where it is wide; the rest is 0.
  __device__ static void load(T* to, const Source<T>& s, int64_t row, int64_t col) {
    constexpr int kV = kPack<T>;
    for (int i = threadIdx.x; i < kRows * kCols / kV; i += kThreads) {
      const int r = i / (kCols / kV), c = i % (kCols / kV) * kV;
      T* at = to + r * kPitch + c;
      const bool inside = row + r < s.rows && col + c < s.cols;
      const T* from = inside ? s.row(row + r) + col + c : nullptr;
      if (inside && s.wide) {
        copy_async16(at, from);
        continue;
      }
#pragma unroll
      for (int j = 0; j < kV; ++j) at[j] = inside && col + c + j < s.cols ? from[j] : from_float<T>(0.0f);
    }
  }
};

constexpr int kTileBytes = kTile * (64 + 16), kStagePitch = kTile + 4;
static_assert(Tile<float, false>::kRows * Tile<float, false>::kPitch * 4 <= kTileBytes);
static_assert(Tile<__half, false>::kRows * Tile<__half, false>::kPitch * 2 <= kTileBytes);
static_assert(kHalf * kStagePitch * 4 <= 4 * kTileBytes);

// Products of two tiles: 64 sums of each thread, and which element of the tile each of them is. 16 bits: warp w has 32
// rows and 64 columns, two by eight products of tensor cores.
template <class T, bool kAlongA, bool kAlongB>
struct Product {
  float sums[64] = {};

  __device__ static int warp_row() { return static_cast<int>(threadIdx.x) / 64 * 32; }
  __device__ static int warp_col() { return static_cast<int>(threadIdx.x) / 32 % 2 * 64; }
  __device__ static int row_of(int i) {
    return warp_row() + i / 32 * 16 + i % 4 / 2 * 8 + static_cast<int>(threadIdx.x) % 32 / 4;
  }
  __device__ static int col_of(int i) { return warp_col() + i / 4 % 8 * 8 + threadIdx.x % 4 * 2 + i % 2; }

  // Adds a step. rows, cols: of the tile that exist; warps with none of them have nothing to do.
  __device__ void add(const T* a, const T* b, int64_t rows, int64_t cols) {
    if (warp_row() >= rows || warp_col() >= cols) return;
    constexpr int kPitchA = Tile<T, kAlongA>::kPitch, kPitchB = Tile<T, kAlongB>::kPitch;
    const int lane = threadIdx.x % 32, low = lane % 8, middle = lane / 8 % 2 * 8, high = lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < kDepth<T>; k += 16) {
      uint32_t left[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = warp_row() + 16 * i;
        load_matrices<!kAlongA>(left[i], kAlongA ? a + (row + low + middle) * kPitchA + k + high
                                                 : a + (k + low + high) * kPitchA + row + middle);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int col = warp_col() + 16 * j;
        uint32_t right[4];
        load_matrices<!kAlongB>(right, kAlongB ? b + (col + low + high) * kPitchB + k + middle
                                               : b + (k + low + middle) * kPitchB + col + high);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          multiply_add<T>(sums + 32 * i + 8 * j, left[i], right[0], right[1]);
          multiply_add<T>(sums + 32 * i + 8 * j + 4, left[i], right[2], right[3]);
        }
      }
    }
  }
};

// f32: thread (y, x) of 16 x 16 has 8 rows and 8 columns: 16 apart where k is along the rows of the operand, else twice
// four neighbours.
template <bool kAlongA, bool kAlongB>
struct Product<float, kAlongA, kAlongB> {
  float sums[64] = {};

  template <bool kAlong>
  __device__ static int index(int thread, int i) {
    return kAlong ? thread + 16 * i : 4 * thread + i % 4 + i / 4 * kHalf;
  }
  __device__ static int row_of(int i) { return index<kAlongA>(threadIdx.x / 16, i / 8); }
  __device__ static int col_of(int i) { return index<kAlongB>(threadIdx.x % 16, i % 8); }

  // Four k of 8 rows or columns.
  template <bool kAlong>
  __device__ static void read(const float* tile, int thread, int k, float (&out)[4][8]) {
    constexpr int kPitch = Tile<float, kAlong>::kPitch;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float4 v = *reinterpret_cast<const float4*>(
          kAlong ? tile + (thread + 16 * i) * kPitch + k : tile + (k + i / 2) * kPitch + 4 * thread + i % 2 * kHalf);
      const float four[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) (kAlong ? out[j][i] : out[i / 2][i % 2 * 4 + j]) = four[j];
    }
  }

  __device__ void add(const float* a, const float* b, int64_t, int64_t) {
#pragma unroll 1
    for (int k = 0; k < kDepth<float>; k += 4) {
      float left[4][8], right[4][8];
      read<kAlongA>(a, threadIdx.x / 16, k, left);
      read<kAlongB>(b, threadIdx.x % 16, k, right);
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int i = 0; i < 64; ++i) sums[i] = fmaf(left[j][i / 8], right[j][i % 8], sums[i]);
    }
  }
};

// A matrix that receives a tile.
template <class G>
struct Target {
  G* data;
  int64_t rows, cols;
  bool wide, accumulate;

  // Writes half a tile from shared memory to (row, col) and on.
  __device__ void put(const float* stage, int64_t row, int64_t col) const {
    constexpr int kV = kPack<G>;
    for (int i = threadIdx.x; i < kHalf * kTile / kV; i += kThreads) {
      const int r = i / (kTile / kV), c = i % (kTile / kV) * kV;
      if (row + r >= rows || col + c >= cols) continue;
      float v[kV], old[kV] = {};
      cuda::load<kV>(stage + r * kStagePitch + c, v);
      G* to = data + (row + r) * cols + col + c;
      if (wide) {
        if (accumulate) cuda::load<kV>(to, old);
#pragma unroll
        for (int j = 0; j < kV; ++j) v[j] += old[j];
        store_at_once<kV>(to, v);
      } else {
#pragma unroll
        for (int j = 0; j < kV; ++j)
          if (col + c + j < cols) to[j] = from_float<G>(accumulate ? to_float(to[j]) + v[j] : v[j]);
      }
    }
  }
};

// Tile (row, col) of `to`: the sum over k of a and b. Steps are loaded while those before them are multiplied.
template <bool kAlongA, bool kAlongB, class T, class G>
__device__ inline void multiply(const Source<T>& a, const Source<T>& b, const Target<G>& to, int64_t row, int64_t col,
                                int64_t depth) {
  __shared__ float4 memory[4 * kTileBytes / 16];
  const auto tile = [&](int64_t step, int operand) {
    return reinterpret_cast<T*>(memory) + (step % 2 * 2 + operand) * (kTileBytes / static_cast<int>(sizeof(T)));
  };
  const auto fetch = [&](int64_t step) {
    const int64_t k = step * kDepth<T>;
    Tile<T, kAlongA>::load(tile(step, 0), a, kAlongA ? row : k, kAlongA ? k : row);
    Tile<T, kAlongB>::load(tile(step, 1), b, kAlongB ? col : k, kAlongB ? k : col);
  };
  const int64_t steps = (depth + kDepth<T> - 1) / kDepth<T>;
  Product<T, kAlongA, kAlongB> product;
  if (steps > 0) fetch(0);
  commit_copies();
  for (int64_t step = 0; step < steps; ++step) {
    if (step + 1 < steps) fetch(step + 1);
    commit_copies();
    wait_copies<1>();
    __syncthreads();
    product.add(tile(step, 0), tile(step, 1), to.rows - row, to.cols - col);
    __syncthreads();
  }
  auto* stage = reinterpret_cast<float*>(memory);
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < 64; ++i)
      if (const int r = product.row_of(i) - half * kHalf; r >= 0 && r < kHalf)
        stage[r * kStagePitch + product.col_of(i)] = product.sums[i];
    __syncthreads();
    to.put(stage, row + half * kHalf, col);
    __syncthreads();
  }
}

// Row tile `index` of all experts: expert e has those from offsets[e] / 128 + e on, at most one more than it needs.
struct RowTile {
  int expert;
  int64_t first, rows, row;  // of the expert; of the tile among them
  __device__ RowTile(const int32_t* offsets, int experts, int64_t index) {
    int low = 0;
    for (int high = experts; high - low > 1;) {
      const int middle = (low + high) / 2;
      (offsets[middle] / kTile + middle <= index ? low : high) = middle;
    }
    expert = low;
    first = offsets[low];
    rows = offsets[low + 1] - first;
    row = (index - first / kTile - low) * kTile;
  }
};

template <class T, bool kTransB>
__global__ void __launch_bounds__(kThreads)
    grouped_gemm_kernel(const __grid_constant__ Source<T> a, const __grid_constant__ Source<T> b,
                        const __grid_constant__ Target<T> out, const int32_t* offsets, int experts) {
  const RowTile tile(offsets, experts, blockIdx.x);
  if (tile.row >= tile.rows) return;
  Source<T> left = a, right = b;
  left.rows = tile.rows;
  left.skip(tile.first);
  right.data += tile.expert * b.rows * b.cols;
  Target<T> to = out;
  to.data += tile.first * out.cols;
  to.rows = tile.rows;
  multiply<true, kTransB>(left, right, to, tile.row, int64_t{blockIdx.y} * kTile, a.cols);
}

template <class T, class G>
__global__ void __launch_bounds__(kThreads)
    grouped_gemm_grad_kernel(const __grid_constant__ Source<T> a, const __grid_constant__ Source<T> b,
                             const __grid_constant__ Target<G> out, const int32_t* offsets) {
  const int64_t first = offsets[blockIdx.z], rows = offsets[blockIdx.z + 1] - first;
  if (rows == 0 && out.accumulate) return;
  const auto of_expert = [&](Source<T> s) {
    s.rows = rows;
    s.skip(first);
    return s;
  };
  Target<G> to = out;
  to.data += blockIdx.z * out.rows * out.cols;
  multiply<false, false>(of_expert(a), of_expert(b), to, int64_t{blockIdx.y} * kTile, int64_t{blockIdx.x} * kTile,
                         rows);
}

template <class T>
bool wide(const Tensor& t, int64_t cols) {
  return aligned16({t.data}) && cols % kPack<T> == 0;
}

template <class T>
Source<T> source(const Tensor& t, int64_t rows, const Tensor& slots, int64_t top_k) {
  const int64_t cols = t.shape.cols();
  return {t.as<T>(), rows, cols, slots ? slots.as<int32_t>() : nullptr, static_cast<int32_t>(top_k), wide<T>(t, cols)};
}

void check_groups(const char* op, const Tensor& slots, const Tensor& offsets, int64_t experts, int64_t rows) {
  require_dtype(op, "offsets", offsets, DType::kI32);
  if (slots) require_dtype(op, "slots", slots, DType::kI32);
  GT_CHECK(offsets.numel() == experts + 1 && (!slots || slots.numel() == rows), op, ": ", offsets.numel(),
           " offsets of ", experts, " experts, slots ", to_string(slots.shape), " of ", rows, " rows");
}

unsigned tiles(int64_t n) { return static_cast<unsigned>(ceil_div(n, kTile)); }

}  // namespace

void grouped_gemm(const GroupedGemm& g, Stream s) {
  constexpr const char* kOp = "grouped_gemm";
  const int64_t experts = g.b.shape[0], rows = g.out.shape.rows(), n = g.out.shape.cols(), k = g.a.shape.cols();
  check_groups(kOp, g.slots, g.offsets, experts, rows);
  require_dtype(kOp, "b", g.b, g.a.dtype);
  require_dtype(kOp, "out", g.out, g.a.dtype);
  GT_CHECK(g.b.shape == (g.trans_b ? Shape{experts, n, k} : Shape{experts, k, n}), kOp, ": a ", to_string(g.a.shape),
           ", b ", to_string(g.b.shape), ", out ", to_string(g.out.shape));
  if (g.out.numel() == 0) return;
  Context& c = enter(s, kOp);
  by_dtype(kOp, "a", g.a.dtype, [&](auto t) {
    using T = decltype(t);
    auto* kernel = g.trans_b ? grouped_gemm_kernel<T, true> : grouped_gemm_kernel<T, false>;
    const dim3 grid(static_cast<unsigned>(rows / kTile + experts), tiles(n));
    kernel<<<grid, kThreads, 0, c.stream>>>(source<T>(g.a, rows, g.slots, g.top_k), source<T>(g.b, g.b.shape[1], {}, 1),
                                            Target<T>{g.out.as<T>(), rows, n, wide<T>(g.out, n), false},
                                            g.offsets.as<int32_t>(), static_cast<int>(experts));
  });
  leave(c, kOp);
}

void grouped_gemm_grad(const GroupedGemmGrad& g, Stream s) {
  constexpr const char* kOp = "grouped_gemm_grad";
  const int64_t experts = g.out.shape[0], rows = g.slots.numel(), m = g.a.shape.cols(), n = g.b.shape.cols();
  check_groups(kOp, g.slots, g.offsets, experts, rows);
  require_dtype(kOp, "b", g.b, g.a.dtype);
  GT_CHECK((g.out.shape == Shape{experts, m, n}) && (g.gather_a ? g.b : g.a).shape.rows() == rows, kOp, ": a ",
           to_string(g.a.shape), ", b ", to_string(g.b.shape), ", out ", to_string(g.out.shape));
  if (g.out.numel() == 0) return;
  Context& c = enter(s, kOp);
  by_dtype(kOp, "a", g.a.dtype, [&](auto t) {
    by_gradient(kOp, "out", g.out.dtype, [&](auto d) {
      using T = decltype(t);
      using G = decltype(d);
      const dim3 grid(tiles(n), tiles(m), static_cast<unsigned>(experts));
      grouped_gemm_grad_kernel<T, G><<<grid, kThreads, 0, c.stream>>>(
          source<T>(g.a, rows, g.gather_a ? g.slots : Tensor{}, g.top_k),
          source<T>(g.b, rows, g.gather_a ? Tensor{} : g.slots, g.top_k),
          Target<G>{g.out.as<G>(), m, n, wide<G>(g.out, n), g.accumulate}, g.offsets.as<int32_t>());
    });
  });
  leave(c, kOp);
}

}  // namespace gt::cuda
