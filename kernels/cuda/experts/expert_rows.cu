// Orders of slots, and sums of a token's rows. Sorts are stable counting sorts in pieces of 1024 slots, a warp each:
// counts of every group in every piece, their prefix sum, and writes in ascending order.
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/scan.cuh"
#include "kernels/cuda/table.h"
#include "kernels/cuda/vec.cuh"

namespace gt::cuda {

namespace {

constexpr int kThreads = 256, kPiece = 1024, kMostGroups = 8192;

// What is sorted: slots by expert or, `each` of them a rank, by its rank.
struct SlotKeys {
  const int32_t* experts;
  int32_t each;
  __device__ int group(int64_t i) const { return experts[i] / each; }
  __device__ void put(int64_t, int64_t) const {}
};
// Parts from other ranks by expert. put: the copy of each, which lie one behind the other in the order of ranks.
struct PartKeys {
  const int32_t *parts, *counts;
  int32_t* tokens;
  __device__ int group(int64_t i) const { return parts[2 * i + 1]; }
  __device__ void put(int64_t row, int64_t i) const {
    int32_t before = 0;
    int64_t slots = 0;
    for (const int32_t* rank = counts; i >= slots + rank[1]; rank += 2) before += rank[0], slots += rank[1];
    tokens[row] = before + parts[2 * i];
  }
};

// counts[group][piece]
template <class Keys>
__global__ void __launch_bounds__(kThreads)
    count_kernel(const __grid_constant__ Keys keys, int64_t n, int groups, int pieces, int32_t* counts) {
  extern __shared__ float4 memory[];
  auto* bins = reinterpret_cast<int32_t*>(memory);
  for (int g = threadIdx.x; g < groups; g += kThreads) bins[g] = 0;
  __syncthreads();
  const int64_t begin = int64_t{blockIdx.x} * kPiece, end = min(n, begin + kPiece);
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads)
    atomicAdd(&bins[keys.group(i)], 1);  // integer: order-independent
  __syncthreads();
  for (int g = threadIdx.x; g < groups; g += kThreads) counts[int64_t{g} * pieces + blockIdx.x] = bins[g];
}

// counts: their prefix sum. offsets [groups + 1].
template <class Keys>
__global__ void __launch_bounds__(32)
    sort_kernel(const __grid_constant__ Keys keys, int64_t n, int groups, int pieces, const int32_t* counts,
                int32_t* slots, int32_t* rows, int32_t* offsets) {
  extern __shared__ float4 memory[];
  auto* next = reinterpret_cast<int32_t*>(memory);
  for (int g = threadIdx.x; g < groups; g += 32) {
    next[g] = counts[int64_t{g} * pieces + blockIdx.x];
    if (blockIdx.x == 0) offsets[g] = next[g];
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) offsets[groups] = static_cast<int32_t>(n);
  __syncwarp();
  for (int round = 0; round < kPiece / 32; ++round) {
    const int64_t i = int64_t{blockIdx.x} * kPiece + round * 32 + threadIdx.x;
    const bool live = i < n;
    const int group = live ? keys.group(i) : groups;  // lanes past the end share a group of their own
    const unsigned same = __match_any_sync(kAllLanes, group);
    const int rank = __popc(same & ((1u << threadIdx.x) - 1));
    const int32_t row = live ? next[group] + rank : 0;
    __syncwarp();
    if (live && rank == 0) next[group] += __popc(same);
    __syncwarp();
    if (!live) continue;
    slots[row] = static_cast<int32_t>(i);
    rows[i] = row;
    keys.put(row, i);
  }
}

// first[r]: 1 where slot r of the slots by rank is the first of its token for that rank; first[n] = 0.
__global__ void __launch_bounds__(kThreads)
    first_slots_kernel(const int32_t* experts, const int32_t* slots, int32_t* first, int64_t n, int k, int each) {
  const int64_t r = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (r > n) return;
  const auto differs = [&](int32_t a, int32_t b) { return a / k != b / k || experts[a] / each != experts[b] / each; };
  first[r] = r < n && (r == 0 || differs(slots[r], slots[r - 1])) ? 1 : 0;
}

// copies_before[r]: copies of the slots before r. offsets [ranks + 1] of the slots by rank.
__global__ void __launch_bounds__(kThreads)
    send_kernel(const int32_t* experts, const int32_t* slots, const int32_t* copies_before, const int32_t* offsets,
                int32_t* copies, int32_t* parts, int32_t* counts, int64_t n, int k, int each, int ranks) {
  const int64_t r = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (r < ranks) {
    counts[2 * r] = copies_before[offsets[r + 1]] - copies_before[offsets[r]];
    counts[2 * r + 1] = offsets[r + 1] - offsets[r];
  }
  if (r >= n) return;
  const int32_t expert = experts[slots[r]], rank = expert / each, copy = copies_before[r + 1] - 1;
  if (copy == copies_before[r]) copies[copy] = slots[r] / k;
  parts[2 * r] = copy - copies_before[offsets[rank]];
  parts[2 * r + 1] = expert - rank * each;
}

// rows [tokens, k] of x, added in the order of a token's slots.
template <int V, class T>
__global__ void __launch_bounds__(kThreads)
    combine_rows_kernel(const T* x, const int32_t* rows, T* out, int64_t packs, int64_t cols, int k, bool accumulate) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= packs) return;
  const int64_t token = i * V / cols, col = i * V % cols;
  float sum[V];
  load<V>(x + rows[token * k] * cols + col, sum);
  for (int j = 1; j < k; ++j) {
    float v[V];
    load<V>(x + rows[token * k + j] * cols + col, v);
#pragma unroll
    for (int l = 0; l < V; ++l) sum[l] += v[l];
  }
  if (accumulate) {
    float old[V];
    load<V>(out + i * V, old);
#pragma unroll
    for (int l = 0; l < V; ++l) sum[l] = old[l] + sum[l];
  }
  store<V>(out + i * V, sum);
}

int32_t* ints(const Tensor& t) { return t.as<int32_t>(); }
unsigned blocks_of(int64_t n) { return static_cast<unsigned>(ceil_div(n, kThreads)); }
int64_t pieces_of(int64_t n) { return std::max<int64_t>(1, ceil_div(n, kPiece)); }

void check_ints(const char* op, std::initializer_list<std::pair<const char*, Tensor>> all) {
  for (const auto& [name, t] : all) require_dtype(op, name, t, DType::kI32);
}

// Sorts n items of `groups`; counts: scratch, [groups, pieces_of(n)].
template <class Keys>
void sort(const Context& c, const char* op, const Keys& keys, int64_t n, int64_t groups, int32_t* counts,
          int32_t* slots, int32_t* rows, int32_t* offsets) {
  GT_REQUIRE(groups <= kMostGroups && n < (int64_t{1} << 31), Exit::kUsage, "cuda ", op, ": ", n, " slots of ", groups,
             " experts or ranks; below 2^31 and at most ", kMostGroups, " are supported");
  const int64_t pieces = pieces_of(n);
  const auto grid = static_cast<unsigned>(pieces);
  const auto shared = static_cast<size_t>(4 * groups);
  const int bins = static_cast<int>(groups), parts = static_cast<int>(pieces);
  count_kernel<Keys><<<grid, kThreads, shared, c.stream>>>(keys, n, bins, parts, counts);
  scan_kernel<<<1, 1024, 0, c.stream>>>(counts, groups * pieces);
  sort_kernel<Keys><<<grid, 32, shared, c.stream>>>(keys, n, bins, parts, counts, slots, rows, offsets);
}

}  // namespace

void group_rows(const GroupRows& g, Stream s) {
  constexpr const char* kOp = "group_rows";
  check_ints(kOp, {{"experts", g.experts}, {"slots", g.slots}, {"rows", g.rows}, {"offsets", g.offsets}});
  const int64_t n = g.experts.numel(), groups = g.offsets.numel() - 1;
  GT_CHECK(g.slots.numel() == n && g.rows.numel() == n, kOp, ": experts ", to_string(g.experts.shape), ", slots ",
           to_string(g.slots.shape), ", rows ", to_string(g.rows.shape));
  Context& c = enter(s, kOp);
  auto* counts = reinterpret_cast<int32_t*>(c.scratch(4 * groups * pieces_of(n)));
  sort(c, kOp, SlotKeys{ints(g.experts), 1}, n, groups, counts, ints(g.slots), ints(g.rows), ints(g.offsets));
  leave(c, kOp);
}

void send_rows(const SendRows& r, Stream s) {
  constexpr const char* kOp = "send_rows";
  check_ints(kOp, {{"experts", r.experts}, {"slots", r.slots}, {"rows", r.rows}});
  check_ints(kOp, {{"copies", r.copies}, {"parts", r.parts}, {"counts", r.counts}});
  const int64_t n = r.experts.numel(), ranks = r.counts.numel() / 2, each = r.count / ranks, k = r.experts.shape.cols();
  GT_CHECK(each * ranks == r.count && r.slots.numel() == n && r.rows.numel() == n && r.parts.numel() == 2 * n &&
               (n == 0 || r.copies.numel() == n / k * std::min(k, ranks)),
           kOp, ": ", r.count, " experts on ", ranks, " ranks, experts ", to_string(r.experts.shape), ", copies ",
           to_string(r.copies.shape));
  Context& c = enter(s, kOp);
  ScratchLayout plan;
  const int64_t at_counts = plan.add(4 * ranks * pieces_of(n)), at_offsets = plan.add(4 * (ranks + 1));
  const int64_t at_first = plan.add(4 * (n + 1));
  std::byte* base = c.scratch(plan.bytes());
  auto *offsets = reinterpret_cast<int32_t*>(base + at_offsets), *first = reinterpret_cast<int32_t*>(base + at_first);
  sort(c, kOp, SlotKeys{ints(r.experts), static_cast<int32_t>(each)}, n, ranks,
       reinterpret_cast<int32_t*>(base + at_counts), ints(r.slots), ints(r.rows), offsets);
  const int width = static_cast<int>(k), share = static_cast<int>(each);
  first_slots_kernel<<<blocks_of(n + 1), kThreads, 0, c.stream>>>(ints(r.experts), ints(r.slots), first, n, width,
                                                                  share);
  scan_kernel<<<1, 1024, 0, c.stream>>>(first, n + 1);
  send_kernel<<<blocks_of(std::max(n, ranks)), kThreads, 0, c.stream>>>(ints(r.experts), ints(r.slots), first, offsets,
                                                                        ints(r.copies), ints(r.parts), ints(r.counts),
                                                                        n, width, share, static_cast<int>(ranks));
  leave(c, kOp);
}

void receive_rows(const ReceiveRows& r, Stream s) {
  constexpr const char* kOp = "receive_rows";
  check_ints(kOp, {{"parts", r.parts}, {"counts", r.counts}, {"slots", r.slots}});
  check_ints(kOp, {{"tokens", r.tokens}, {"rows", r.rows}, {"offsets", r.offsets}});
  const int64_t n = r.slots.numel(), groups = r.offsets.numel() - 1;
  GT_CHECK(r.parts.numel() == 2 * n && r.tokens.numel() == n && r.rows.numel() == n, kOp, ": parts ",
           to_string(r.parts.shape), ", slots ", to_string(r.slots.shape));
  Context& c = enter(s, kOp);
  auto* counts = reinterpret_cast<int32_t*>(c.scratch(4 * groups * pieces_of(n)));
  sort(c, kOp, PartKeys{ints(r.parts), ints(r.counts), ints(r.tokens)}, n, groups, counts, ints(r.slots), ints(r.rows),
       ints(r.offsets));
  leave(c, kOp);
}

void combine_rows(const CombineRows& r, Stream s) {
  constexpr const char* kOp = "combine_rows";
  require_dtype(kOp, "out", r.out, r.x.dtype);
  require_dtype(kOp, "rows", r.rows, DType::kI32);
  if (r.out.numel() == 0) return;
  const int64_t cols = r.out.shape.cols(), tokens = r.out.shape.rows(), k = r.rows.numel() / tokens;
  GT_CHECK(r.x.shape.cols() == cols && r.rows.numel() == k * tokens && k > 0, kOp, ": x ", to_string(r.x.shape),
           ", rows ", to_string(r.rows.shape), ", out ", to_string(r.out.shape));
  Context& c = enter(s, kOp);
  by_dtype(kOp, "x", r.x.dtype, [&](auto t) {
    using T = decltype(t);
    const bool wide = cols % kPack<T> == 0 && aligned16({r.x.data, r.out.data});
    const int64_t packs = r.out.numel() / (wide ? kPack<T> : 1);
    auto* kernel = wide ? combine_rows_kernel<kPack<T>, T> : combine_rows_kernel<1, T>;
    kernel<<<blocks_of(packs), kThreads, 0, c.stream>>>(r.x.as<T>(), ints(r.rows), r.out.as<T>(), packs, cols,
                                                        static_cast<int>(k), r.accumulate);
  });
  leave(c, kOp);
}

}  // namespace gt::cuda
