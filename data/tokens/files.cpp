#include "data/tokens/files.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>

#include "kernels/core/check.h"
#include "kernels/core/hash/sha256.h"

namespace gt {

void write_all(int fd, const void* data, size_t bytes, const std::string& path) {
  const auto* p = static_cast<const char*>(data);
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = ::write(fd, p + done, bytes - done);
    if (n < 0 && errno == EINTR) continue;
    GT_REQUIRE(n > 0, Exit::kIo, path, ": write of ", bytes, " bytes stopped after ", done, ": ", std::strerror(errno));
    done += static_cast<size_t>(n);
  }
}

void rename_file(const std::string& from, const std::string& to) {
  GT_REQUIRE(::rename(from.c_str(), to.c_str()) == 0, Exit::kIo, from, ": cannot be renamed to ", to, ": ",
             std::strerror(errno));
}

void sync_and_close(int fd, const std::string& path) {
  const int bad_sync = ::fsync(fd), error = errno;
  const int bad_close = ::close(fd);
  GT_REQUIRE(bad_sync == 0 && bad_close == 0, Exit::kIo, path,
             ": sync failed: ", std::strerror(bad_sync ? error : errno));
}

Fd open_file(const std::string& path, int flags) {
  Fd fd(::open(path.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, 0666));
  GT_REQUIRE(
      fd, Exit::kIo, path, ": cannot be opened: ",
      errno == ELOOP ? "it is a symbolic link, and nothing is written through one; remove it" : std::strerror(errno));
  return fd;
}

void write_file_atomically(const std::string& path, std::string_view content) {
  static std::atomic<int> count{0};  // ranks that are threads may write the same file concurrently
  const std::string temporary = cat(path, ".tmp.", ::getpid(), '.', ++count);
  Fd fd = open_file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
  write_all(fd.get(), content.data(), content.size(), temporary);
  sync_and_close(fd.release(), temporary);
  rename_file(temporary, path);
}

std::string xxh3_128_file(const std::string& path) {
  const Fd fd = open_to_read(path);
  struct Free {
    void operator()(XXH3_state_t* s) const { XXH3_freeState(s); }
  };
  std::unique_ptr<XXH3_state_t, Free> state(XXH3_createState());
  XXH3_128bits_reset(state.get());
  std::string buffer(1 << 18, '\0');
  for (;;) {
    const ssize_t n = ::read(fd.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    GT_REQUIRE(n >= 0, Exit::kIo, path, ": read failed: ", std::strerror(errno));
    if (n == 0) break;
    XXH3_128bits_update(state.get(), buffer.data(), static_cast<size_t>(n));
  }
  XXH128_canonical_t c;
  XXH128_canonicalFromHash(&c, XXH3_128bits_digest(state.get()));
  return to_hex(c.digest, sizeof c.digest);
}

}  // namespace gt
