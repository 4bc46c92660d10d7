// Numbers that a run of the tests takes from the environment: seeds, goals.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <string>

namespace gt {

inline uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::stoull(text);
}

}  // namespace gt
