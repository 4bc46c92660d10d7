// Enums with names for users: `names_of(E)` beside the enum returns them in value order.
#pragma once
#include <cstddef>
#include <optional>
#include <string_view>

namespace gt {

template <class E>
requires requires(E e) { names_of(e); }
constexpr const char* name_of(E e) { return names_of(e)[static_cast<size_t>(e)]; }

// Returns the value of that name, if there is one.
template <class E>
std::optional<E> value_named(std::string_view name) {
  static constexpr auto kNames = names_of(E{});
  for (size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == name) return static_cast<E>(i);
  return std::nullopt;
}

}  // namespace gt
