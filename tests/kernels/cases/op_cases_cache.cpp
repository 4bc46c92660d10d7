// KV cache cases: rows of several sequences at several positions, grouped queries, every dtype.
#include <cmath>

#include "tests/kernels/cases/op_cases.h"

namespace gt::test {
namespace {

struct CacheSize {
  int64_t heads, kv, dim, capacity;
  int64_t window = 0;
  float softcap = 0;
};

void add_cache(OpCases& to, const CacheSize& size, DType t, bool big = false) {
  const auto [heads, kv, dim, capacity, window, softcap] = size;
  const std::string name =
      cat("heads ", heads, "/", kv, " dim ", dim, " capacity ", capacity, window > 0 ? cat(" window ", window) : "",
          softcap > 0 ? cat(" softcap ", softcap) : "", suffix(t));
  const Shape cache{3, kv, capacity, dim}, qkv{3, (heads + 2 * kv) * dim};
  const double end = static_cast<double>(capacity - 1);
  const Fill sequences = values({2, 0, 1}), positions = values({end, 0, std::floor(end / 2)});
  using S = StoreKv;
  auto& store = add_case<S>(to, name);
  store.in(&S::k, "k", qkv, normal(), t).alias(&S::v, &S::k);
  store.args.k.column = heads * dim, store.args.v.column = (heads + kv) * dim;
  store.in(&S::sequences, "sequences", {3}, sequences, DType::kI32);
  store.in(&S::positions, "positions", {3}, positions, DType::kI32);
  store.inout(&S::keys, "keys", cache, normal(), t).inout(&S::values, "values", cache, normal(), t);
  store.tolerance = 0;
  store.flops = 1;
  using A = CachedAttention;
  auto& read = add_case<A>(to, name);
  read.in(&A::q, "q", qkv, normal(1.5), t);
  read.in(&A::sequences, "sequences", {3}, sequences, DType::kI32);
  read.in(&A::positions, "positions", {3}, positions, DType::kI32);
  read.in(&A::keys, "keys", cache, normal(1.5), t).in(&A::values, "values", cache, normal(), t);
  read.out(&A::out, "out", {3, heads * dim}, t);
  read.args.heads = heads;
  read.args.scale = 1 / std::sqrt(static_cast<float>(dim));
  read.args.window = window, read.args.softcap = softcap;
  read.tolerance = unit_of(t);
  store.big = read.big = big;
  const int64_t attended = window > 0 && window < capacity ? window : capacity;
  read.flops = 4.0 * static_cast<double>(heads * attended * dim);
}

}  // namespace

void add_cache_cases(OpCases& to) {
  add_cache(to, {12, 12, 64, 1024}, DType::kF32, true);  // for the benchmark
  add_cache(to, {12, 12, 64, 4096, 1024}, DType::kF32, true);
  for (const DType t : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t capacity : {1, 17, 64, 200}) add_cache(to, {4, 2, 8, capacity}, t);
    add_cache(to, {3, 1, 80, 129}, t);
    add_cache(to, {2, 2, 5, 70}, t);
    for (const int64_t window : {1, 64, 70, 150, 300}) add_cache(to, {4, 2, 8, 300, window}, t);
    add_cache(to, {4, 2, 8, 70, 0, 2}, t);
    add_cache(to, {3, 1, 80, 129, 33, 5}, t);
  }
}

}  // namespace gt::test
