// Reflection over aggregates without naming members. same_bits() compares member by member, ignoring padding: values,
// addresses and shapes must be bitwise identical.
#pragma once
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "kernels/core/tensor.h"

namespace gt {
namespace fields {

struct Anything {
  template <class T>
  operator T() const;  // converts to any member type; never called
};

template <class T, class... Found>
constexpr size_t count() {
  if constexpr (requires { T{Found{}..., Anything{}}; })
    return count<T, Found..., Anything>();
  else
    return sizeof...(Found);
}

// Returns a tuple of references to all members of an aggregate of at most 21.
template <class T>
constexpr auto of(const T& x) {
  constexpr size_t n = count<T>();
  static_assert(n >= 1 && n <= 21, "fields::of names 1 to 21 members: add a line for more");
#define GT_MEMBERS(number, ...)    \
  if constexpr (n == number) {     \
    const auto& [__VA_ARGS__] = x; \
    return std::tie(__VA_ARGS__);  \
  } else
  GT_MEMBERS(1, a)
  GT_MEMBERS(2, a, b)
  GT_MEMBERS(3, a, b, c)
  GT_MEMBERS(4, a, b, c, d)
  GT_MEMBERS(5, a, b, c, d, e)
  GT_MEMBERS(6, a, b, c, d, e, f)
  GT_MEMBERS(7, a, b, c, d, e, f, g)
  GT_MEMBERS(8, a, b, c, d, e, f, g, h)
  GT_MEMBERS(9, a, b, c, d, e, f, g, h, i)
  GT_MEMBERS(10, a, b, c, d, e, f, g, h, i, j)
  GT_MEMBERS(11, a, b, c, d, e, f, g, h, i, j, k)
  GT_MEMBERS(12, a, b, c, d, e, f, g, h, i, j, k, l)
  GT_MEMBERS(13, a, b, c, d, e, f, g, h, i, j, k, l, m)
  GT_MEMBERS(14, a, b, c, d, e, f, g, h, i, j, k, l, m, o)
  GT_MEMBERS(15, a, b, c, d, e, f, g, h, i, j, k, l, m, o, p)
  GT_MEMBERS(16, a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q)
  GT_MEMBERS(17, a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r)
  GT_MEMBERS(18, a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s)
  GT_MEMBERS(19, a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t)
  GT_MEMBERS(20, a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t, u)
  GT_MEMBERS(21, a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q, r, s, t, u, v)
  return std::tie();
#undef GT_MEMBERS
}

}  // namespace fields

template <class T>
bool same_bits(const T& a, const T& b) {
  if constexpr (std::is_scalar_v<T>) {
    return std::memcmp(&a, &b, sizeof(T)) == 0;
  } else if constexpr (std::is_same_v<T, Shape>) {
    return a == b;
  } else {
    static_assert(std::is_aggregate_v<T>);
    const auto x = fields::of(a), y = fields::of(b);
    return [&]<size_t... I>(std::index_sequence<I...>) { return (same_bits(std::get<I>(x), std::get<I>(y)) && ...); }
    (std::make_index_sequence<std::tuple_size_v<decltype(x)>>());
  }
}

}  // namespace gt
