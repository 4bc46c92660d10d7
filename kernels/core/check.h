// Errors: one exception type and a few macros, the only way to fail. Every error carries the exit code of the process
// it ends; Exit lists all codes.
#pragma once
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace gt {

// Exit codes of the binary. An Error never carries kOk.
enum class Exit : int {
  kOk = 0,
  kDifferent = 1,     // a comparing subcommand found a difference
  kUsage = 2,         // bad configuration, bad usage, a named path does not exist, bad data found before step 1
  kHardware = 16,     // suspected hardware fault
  kNumerical = 17,    // numerical failure
  kDamaged = 65,      // damaged or hostile file
  kInternal = 70,     // failed check, uncaught exception
  kIo = 74,           // I/O failed: no checkpoint possible, data unreadable
  kInterrupted = 75,  // interrupted, everything saved, resumable
  kHang = 124,
};

// Thrown for anything that ends the run: bad config, bad file, failed library call, broken invariant.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& what, Exit code = Exit::kInternal) : std::runtime_error(what), code_(code) {}
  Exit code() const { return code_; }

 private:
  Exit code_;
};

// Concatenates all parts into a string: cat("heads ", 20, " not divisible by tp ", 8).
template <class... A>
std::string cat(const A&... parts) {
  std::ostringstream s;
  ((s << parts), ...);
  return s.str();
}

// Throws a user-facing error without source location. Messages state what was expected, found, where, and what to do.
template <class... A>
[[noreturn]] void fail(Exit code, const A&... parts) {
  throw Error(cat(parts...), code);
}

namespace detail {
template <class... A>
[[noreturn]] void fail_check(const char* file, int line, const char* what, const A&... parts) {
  if constexpr (sizeof...(A) > 0) throw Error(cat(file, ':', line, ": ", what, ": ", parts...));
  throw Error(cat(file, ':', line, ": ", what));
}
}  // namespace detail
}  // namespace gt

// Checks a program invariant; always on. `GT_CHECK(n % tp == 0, "heads ", n, " not divisible by tp ", tp)`
#define GT_CHECK(cond, ...)                                               \
  do {                                                                    \
    if (!(cond)) [[unlikely]]                                             \
      ::gt::detail::fail_check(__FILE__, __LINE__, #cond, ##__VA_ARGS__); \
  } while (0)

// Checks a condition that a user or a file can violate. `GT_REQUIRE(file, Exit::kUsage, path, ": no such file")`
#define GT_REQUIRE(cond, code, ...)    \
  do {                                 \
    if (!(cond)) [[unlikely]]          \
      ::gt::fail((code), __VA_ARGS__); \
  } while (0)

// Debug builds only: per-element and per-op invariants.
#ifdef NDEBUG
#define GT_DCHECK(...) ((void)0)
#else
#define GT_DCHECK(...) GT_CHECK(__VA_ARGS__)
#endif
