// Function names from this program's own symbol table, which the dynamic linker does not load. Async-signal-safe: no
// heap, no lock.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gt {

// Maps /proc/self/exe for its lifetime. All lookups fail if it is unreadable or stripped.
class ProgramSymbols {
 public:
  ProgramSymbols();
  ~ProgramSymbols();
  ProgramSymbols(const ProgramSymbols&) = delete;
  ProgramSymbols& operator=(const ProgramSymbols&) = delete;
  // Returns the mangled name of the function at `address`, owned by this object; nullptr if it is not in this program.
  const char* name_of(const void* address) const;

 private:
  const char* file_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace gt
