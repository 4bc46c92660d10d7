// Misaligned loads and stores, which a GPU refuses and this CPU does not. The compiler inserts a call of this function
// where an access of a kernel may be misaligned (-fsanitize=alignment, without its runtime library).
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

// The sanitizer's description of an access.
struct Access {
  const char* file;
  uint32_t line, column;
  const void* type;
  uint8_t log_alignment, kind;
};

}  // namespace

extern "C" {
[[gnu::visibility("hidden")]] void __ubsan_handle_type_mismatch_v1(const Access* a, uintptr_t address) {
  std::fprintf(stderr, "emulated device: %s:%u: a misaligned access to %#llx, %u bytes are required\n", a->file,
               a->line, static_cast<unsigned long long>(address), 1u << a->log_alignment);
  std::abort();
}
}
