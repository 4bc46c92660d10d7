// Function names of this program's own symbol table, which the dynamic linker does not load. No heap and no lock, so a
// signal handler may ask.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gt {

// Maps /proc/self/exe while it lives; finds nothing where it cannot be read or is stripped.
class ProgramSymbols {
 public:
  ProgramSymbols();
  ~ProgramSymbols();
  ProgramSymbols(const ProgramSymbols&) = delete;
  ProgramSymbols& operator=(const ProgramSymbols&) = delete;
  // The mangled name of the function at this address, valid while the object lives; nullptr: not of this program.
  const char* name_of(const void* address) const;

 private:
  const char* file_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace gt
