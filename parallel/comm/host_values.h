// Collectives on values in host memory. Each call blocks, and every rank of the group makes it.
#pragma once
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "parallel/comm/process_group.h"

namespace gt {

// View of numbers in host memory as a tensor [n] of their dtype; of other trivially copyable values, of their bytes.
template <class T, size_t kExtent>
Tensor host_tensor(std::span<T, kExtent> values) {
  static_assert(std::is_trivially_copyable_v<T> && !std::is_const_v<T>);
  constexpr bool kNumber =
      std::is_same_v<T, double> || std::is_same_v<T, float> || std::is_same_v<T, int64_t> || std::is_same_v<T, int32_t>;
  constexpr DType kType = std::is_same_v<T, double>    ? DType::kF64
                          : std::is_same_v<T, float>   ? DType::kF32
                          : std::is_same_v<T, int64_t> ? DType::kI64
                          : std::is_same_v<T, int32_t> ? DType::kI32
                                                       : DType::kByte;
  const auto count = static_cast<int64_t>(kNumber ? values.size() : values.size_bytes());
  return {reinterpret_cast<std::byte*>(values.data()), {count}, kType, {}};
}

// Returns the reduction over the ranks of a number, or of each element of an array or vector of numbers.
template <class T>
T reduce_over(ProcessGroup& group, ReduceOp op, T values) {
  if constexpr (std::is_arithmetic_v<T>)
    group.all_reduce(host_tensor(std::span(&values, 1)), op, {}).wait({});
  else
    group.all_reduce(host_tensor(std::span(values)), op, {}).wait({});
  return values;
}
template <class T>
T max_over(ProcessGroup& group, T values) {
  return reduce_over(group, ReduceOp::kMax, std::move(values));
}
template <class T>
T min_over(ProcessGroup& group, T values) {
  return reduce_over(group, ReduceOp::kMin, std::move(values));
}
template <class T>
T sum_over(ProcessGroup& group, T values) {
  return reduce_over(group, ReduceOp::kSum, std::move(values));
}

// Returns the root's value.
template <class T>
T broadcast_value(ProcessGroup& group, T value, int root = 0) {
  group.broadcast(host_tensor(std::span(&value, 1)), root, {}).wait({});
  return value;
}

// Returns the values of all ranks, in rank order.
template <class T>
std::vector<T> gather_values(ProcessGroup& group, T mine) {
  std::vector<T> all(static_cast<size_t>(group.size()));
  group.all_gather(host_tensor(std::span(&mine, 1)), host_tensor(std::span(all)), {}).wait({});
  return all;
}

}  // namespace gt
