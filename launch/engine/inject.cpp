#include "launch/engine/inject.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "kernels/core/check.h"
#include "parallel/zero/shard_copy.h"

namespace gt {
namespace {

void read_nowhere() {
  void* page = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  static_cast<void>(*static_cast<volatile char*>(page));
}

void terminate_in_a_thread() {
  std::thread([] { throw std::runtime_error("fault.inject terminate"); }).join();
}

void change(float& x, const Injection& f) {
  if (f.action == "nan") x = std::numeric_limits<float>::quiet_NaN();
  if (f.action == "inf") x = std::numeric_limits<float>::infinity();
  if (f.action == "scale") x *= static_cast<float>(f.n);
  if (f.action != "flip") return;
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits ^= uint32_t{1} << (f.bit & 31);
  std::memcpy(&x, &bits, sizeof bits);
}

}  // namespace

std::vector<std::string> Injector::params() const {
  std::vector<std::string> out;
  for (const Injection& f : faults_)
    if (!f.param.empty()) out.push_back(f.param);
  return out;
}

bool Injector::due(const Injection& f, const char* site, int64_t step) const {
  return f.site == site && (f.step < 0 || (f.step <= step && step <= f.until));
}

bool Injector::hits(const Injection& f, const char* site, int64_t step) const {
  return due(f, site, step) && (f.rank < 0 || f.rank == rank_);
}

bool Injector::configured(const char* site, int64_t step) const {
  return std::any_of(faults_.begin(), faults_.end(), [&](const Injection& f) { return due(f, site, step); });
}

std::optional<int64_t> Injector::left_out() const {
  for (const Injection& f : faults_)
    if (hits(f, "layout", 0)) return f.index;
  return {};
}

void Injector::at_value(int64_t step, std::byte* value, const DeviceApi& api, Stream stream) const {
  for (const Injection& f : faults_) {
    if (!hits(f, "value", step)) continue;
    uint16_t bits = 0;
    api.copy(&bits, value, sizeof bits, stream);
    api.synchronize(stream);
    bits = static_cast<uint16_t>(bits ^ 1u << (f.bit & 15));
    api.copy(value, &bits, sizeof bits, stream);
    api.synchronize(stream);
  }
}

std::vector<Injection> Injector::in_ops(int64_t step) const {
  std::vector<Injection> out;
  for (const Injection& f : faults_)
    if (hits(f, "forward", step) || hits(f, "backward", step)) out.push_back(f);
  return out;
}

void Injector::at_step(int64_t step) const {
  for (const Injection& f : faults_) {
    if (!hits(f, "step", step)) continue;
    if (f.action == "kill") kill(getpid(), SIGKILL);
    if (f.action == "stop") kill(getpid(), SIGSTOP);
    if (f.action == "segv") read_nowhere();
    if (f.action == "abort") std::abort();
    if (f.action == "terminate") terminate_in_a_thread();
    if (f.action == "exit") _exit(static_cast<int>(f.n));
    std::this_thread::sleep_for(std::chrono::milliseconds(f.ms));
  }
}

void Injector::at_save(int64_t step) const {
  for (const Injection& f : faults_) {
    if (!hits(f, "save", step)) continue;
    if (f.action == "stop") kill(getpid(), SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(f.ms));
  }
}

void Injector::at_tensors(const char* site, int64_t step, const std::vector<ShardView>& views, const Backend& backend,
                          Stream stream) const {
  for (const Injection& f : faults_) {
    if (!hits(f, site, step)) continue;
    for (const ShardView& v : views) {
      const std::string name = v.name.substr(v.name.find('/') + 1);
      if ((!f.param.empty() && f.param != name)) continue;
      const bool all = f.action == "scale";
      for (int64_t k = all ? 0 : f.index; k < (all ? v.data.numel() : std::min(f.index + 1, v.data.numel())); ++k) {
        ShardView one = v;
        one.data = v.data.slice(k, 1);
        float x = 0;
        fetch_view(one, &x, backend, stream);
        change(x, f);
        store_view(one, &x, backend, stream);
      }
    }
  }
}

}  // namespace gt
