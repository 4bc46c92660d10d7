// Preloaded into a program, lets system and library calls fail as its environment defines: FAKE_CALLS holds words
// CALL=ERRNO (every call fails) or CALL:N=ERRNO (the N-th call of the process alone). Calls: malloc, mmap, write,
// fsync, fsync_folder (fsync of a folder), flock, pthread_create.
// The word modes=1 is not a call: everybody may write every file then.
#include <dlfcn.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

extern "C" void* __libc_malloc(size_t bytes);

namespace {

// Without allocations: malloc itself calls it.
bool fails(const char* call, std::atomic<long>& count) {
  const char* const rules = std::getenv("FAKE_CALLS");
  if (rules == nullptr) return false;
  const size_t length = std::strlen(call);
  for (const char* at = rules; (at = std::strstr(at, call)) != nullptr; at += length) {
    if ((at != rules && at[-1] != ' ') || (at[length] != '=' && at[length] != ':')) continue;
    char* end = nullptr;
    long n = 0;
    if (at[length] == ':') {
      n = std::strtol(at + length + 1, &end, 10);
      if (++count != n) return false;
    } else {
      end = const_cast<char*>(at + length);
    }
    errno = static_cast<int>(std::strtol(end + 1, nullptr, 10));
    return true;
  }
  return false;
}

template <class F>
F real(const char* name) {
  return reinterpret_cast<F>(::dlsym(RTLD_NEXT, name));
}

// Whether the code at this address is gpttrain's or libstdc++'s.
bool is_program(const void* address) {
  Dl_info info;
  return ::dladdr(address, &info) != 0 && info.dli_fname != nullptr &&
         (std::strstr(info.dli_fname, "gpttrain") != nullptr || std::strstr(info.dli_fname, "libstdc++") != nullptr);
}

std::atomic<long> mallocs, mmaps, writes, fsyncs, folders, flocks, threads, modes;

}  // namespace

extern "C" {

// Fails in gpttrain and for operator new only, at the next call of theirs: libhdf5 does not check its allocations.
void* malloc(size_t bytes) {
  static std::atomic<bool> due{false};
  if (fails("malloc", mallocs)) due = true;
  if (due && is_program(__builtin_return_address(0)) && due.exchange(false)) {
    errno = ENOMEM;
    return nullptr;
  }
  return __libc_malloc(bytes);
}

void* mmap(void* p, size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
  static const auto call = real<void* (*)(void*, size_t, int, int, int, off_t)>("mmap");
  return fails("mmap", mmaps) ? MAP_FAILED : call(p, bytes, protection, flags, fd, offset);
}

ssize_t write(int fd, const void* data, size_t bytes) {
  static const auto call = real<ssize_t (*)(int, const void*, size_t)>("write");
  return fails("write", writes) ? -1 : call(fd, data, bytes);
}

int fsync(int fd) {
  static const auto call = real<int (*)(int)>("fsync");
  struct stat s {};
  if (::fstat(fd, &s) == 0 && S_ISDIR(s.st_mode) && fails("fsync_folder", folders)) return -1;
  return fails("fsync", fsyncs) ? -1 : call(fd);
}

// With modes=1 everybody may write every file, as on file systems that keep no modes.
int fstat(int fd, struct stat* s) noexcept {
  static const auto call = real<int (*)(int, struct stat*)>("fstat");
  const int r = call(fd, s), error = errno;
  if (r == 0 && fails("modes", modes)) s->st_mode |= 022;
  errno = error;
  return r;
}

int flock(int fd, int operation) noexcept {
  static const auto call = real<int (*)(int, int)>("flock");
  return fails("flock", flocks) ? -1 : call(fd, operation);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*), void* argument) noexcept {
  static const auto call = real<int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>("pthread_create");
  return fails("pthread_create", threads) ? errno : call(thread, attributes, body, argument);
}

}  // extern "C"
