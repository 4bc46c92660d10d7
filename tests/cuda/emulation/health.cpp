#include "tests/cuda/emulation/health.h"

#include <atomic>
#include <cstdlib>
#include <utility>

#include "tests/cuda/emulation/emulate.h"

namespace gt::emulated {
namespace {

struct InjectedFault {
  long kernel = 0;  // counted from 1; 0: disabled
  cudaError_t error = cudaErrorIllegalAddress;
  std::atomic<long> ran{0};
  std::atomic<bool> broken{false};
  InjectedFault() {
    const char* setting = std::getenv("GPTTRAIN_EMULATED_FAILS");
    if (setting == nullptr) return;
    char* rest = nullptr;
    kernel = std::strtol(setting, &rest, 10);
    if (*rest == ':') error = static_cast<cudaError_t>(std::atoi(rest + 1));
  }
};

InjectedFault& fate() {
  static InjectedFault& f = *new InjectedFault;  // never destroyed: streams may outlive static objects
  return f;
}

thread_local bool selected = false;
thread_local bool reported = false;
thread_local cudaError_t left = cudaSuccess;

}  // namespace

cudaError_t entered() {
  if (!selected) die("a thread that has selected no device calls the runtime: with several GPUs that would be GPU 0");
  if (!fate().broken) return cudaSuccess;
  reported = true;
  return fate().error;
}

bool kernel_runs() {
  InjectedFault& f = fate();
  if (f.broken) return reported = true, false;
  if (f.kernel == 0 || ++f.ran != f.kernel) return true;
  f.broken = true;
  return false;
}

void select_device() { selected = true; }
void leave_error(cudaError_t e) { left = e; }
cudaError_t last_error() { return reported ? fate().error : std::exchange(left, cudaSuccess); }

}  // namespace gt::emulated
