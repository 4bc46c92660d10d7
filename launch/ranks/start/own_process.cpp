#include "launch/ranks/start/own_process.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "kernels/core/check.h"

namespace gt {
namespace {

constexpr rlim_t kStackBytes = rlim_t{8} << 20, kLeastStackBytes = rlim_t{1} << 20;

void open_standard_descriptors() {
  int fd = 0;
  while (fd <= STDERR_FILENO && fd >= 0)
    if (fcntl(fd, F_GETFD) >= 0)
      ++fd;
    else
      fd = open("/dev/null", O_RDWR);  // the lowest free one: fd
}

void raise_stack_limit() {
  rlimit stack{};
  if (getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur >= kStackBytes) return;
  stack.rlim_cur = std::min(kStackBytes, stack.rlim_max);
  if (geteuid() == 0 && stack.rlim_max < kStackBytes) stack.rlim_cur = stack.rlim_max = kStackBytes;
  setrlimit(RLIMIT_STACK, &stack);
  getrlimit(RLIMIT_STACK, &stack);
  GT_REQUIRE(stack.rlim_cur >= kLeastStackBytes, Exit::kUsage, "the stack is limited to ", stack.rlim_cur >> 10,
             " KiB, at least ", kLeastStackBytes >> 10, " KiB are needed: ulimit -s ", kStackBytes >> 10);
  pthread_attr_t attributes;  // of threads to come: glibc has read the old limit
  if (pthread_attr_init(&attributes) != 0) return;
  if (pthread_attr_setstacksize(&attributes, kStackBytes) == 0) pthread_setattr_default_np(&attributes);
  pthread_attr_destroy(&attributes);
}

}  // namespace

void prepare_process() {
  open_standard_descriptors();
  signal(SIGXFSZ, SIG_IGN);
  raise_stack_limit();
}

std::string own_program() {
  std::error_code ec;
  if (std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", ec); !ec) return path.string();
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the kernel passes the address as a number
  const auto* name = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
  const std::filesystem::path path = name != nullptr ? std::filesystem::canonical(name, ec) : std::filesystem::path();
  return ec ? "" : path.string();
}

}  // namespace gt
