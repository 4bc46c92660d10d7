// The NVML functions used, declared here with the values and layouts of nvml.h; unchanged from CUDA 11 to 13.
#include "kernels/cuda/nvml.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <map>
#include <mutex>
#include <utility>

#include "kernels/core/check.h"

namespace gt::cuda {
namespace {

constexpr const char* kLibrary = "libnvidia-ml.so.1";  // installed with the driver
using Gpu = struct OpaqueGpu*;                         // nvmlDevice_t

constexpr int kSuccess = 0, kFunctionNotFound = 13;                   // nvmlReturn_t
constexpr int kClockOfSms = 1, kClockOfMemory = 2, kSensorOfGpu = 0;  // nvmlClockType_t, nvmlTemperatureSensors_t
struct Utilization {
  unsigned gpu, memory;  // percent
};
struct Temperature {  // nvmlTemperature_v1_t
  unsigned version = sizeof(Temperature) | 1u << 24;
  int sensor = kSensorOfGpu, celsius = 0;
};

// Maps nvmlClocksEventReason… bit by bit. GpuIdle, bit 0, is not a limit.
uint32_t limits_of(unsigned long long reasons) {
  constexpr unsigned long long kIdle = 1;
  constexpr int kKnown = kNumClockLimits - 1;  // the last stands for later additions
  const unsigned long long named = (reasons & ~kIdle) >> 1;
  const auto known = static_cast<uint32_t>(named & ((1ull << kKnown) - 1));
  return known | (named >> kKnown != 0 ? 1u << kKnown : 0u);
}

struct Nvml {
  std::string obstacle;  // why NVML is unavailable
  int (*init)() = nullptr;
  const char* (*error_string)(int) = nullptr;
  int (*driver_version)(char*, unsigned length) = nullptr;
  int (*by_bus)(const char* bus, Gpu*) = nullptr;
  int (*clock)(Gpu, int type, unsigned* mhz) = nullptr;
  int (*power)(Gpu, unsigned* milliwatts) = nullptr;
  int (*power_limit)(Gpu, unsigned* milliwatts) = nullptr;
  int (*temperature)(Gpu, int sensor, unsigned* celsius) = nullptr;
  int (*newer_temperature)(Gpu, Temperature*) = nullptr;
  int (*reasons)(Gpu, unsigned long long*) = nullptr;
  int (*utilization)(Gpu, Utilization*) = nullptr;

  Nvml() {
    void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* text = dlerror();
      obstacle = cat("no NVML: ", text != nullptr ? text : kLibrary);
      return;
    }
    const auto find = [&](auto& entry, const char* name) {
      if (entry == nullptr) entry = reinterpret_cast<std::decay_t<decltype(entry)>>(dlsym(library, name));
    };
    find(init, "nvmlInit_v2");
    find(error_string, "nvmlErrorString");
    find(driver_version, "nvmlSystemGetDriverVersion");
    find(by_bus, "nvmlDeviceGetHandleByPciBusId_v2");
    find(clock, "nvmlDeviceGetClockInfo");
    find(power, "nvmlDeviceGetPowerUsage");
    find(power_limit, "nvmlDeviceGetEnforcedPowerLimit");
    find(temperature, "nvmlDeviceGetTemperature");
    find(newer_temperature, "nvmlDeviceGetTemperatureV");
    find(reasons, "nvmlDeviceGetCurrentClocksEventReasons");
    find(reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");  // name before CUDA 12.2
    find(utilization, "nvmlDeviceGetUtilizationRates");
    const int status = init != nullptr ? init() : kFunctionNotFound;
    if (status != kSuccess) obstacle = cat("nvmlInit_v2: ", text(status));
  }

  std::string text(int status) const {
    const char* text_of_status = error_string != nullptr ? error_string(status) : nullptr;
    return text_of_status != nullptr ? text_of_status : cat("error ", status);
  }
};

const Nvml& nvml() {
  static const Nvml& loaded = *new Nvml;  // never shut down: threads may query until exit
  return loaded;
}

struct Found {
  Gpu gpu = nullptr;
  std::string obstacle;
};

Found find_gpu(int index) {
  const Nvml& n = nvml();
  if (!n.obstacle.empty()) return {nullptr, n.obstacle};
  char bus[32] = {};
  if (const cudaError_t status = cudaDeviceGetPCIBusId(bus, sizeof bus, index); status != cudaSuccess) {
    cudaGetLastError();
    return {nullptr, cat("CUDA device ", index, " has no PCI bus: ", cudaGetErrorString(status))};
  }
  Found found;
  const int status = n.by_bus != nullptr ? n.by_bus(bus, &found.gpu) : kFunctionNotFound;
  if (status != kSuccess) return {nullptr, cat("NVML has no GPU at ", bus, ": ", n.text(status))};
  return found;
}

Found gpu_of(int index) {
  static std::mutex& mutex = *new std::mutex;
  static std::map<int, Found>& known = *new std::map<int, Found>;
  const std::lock_guard lock(mutex);
  const auto it = known.find(index);
  return it != known.end() ? it->second : known.emplace(index, find_gpu(index)).first->second;
}

void add(std::string* why, const std::string& reason) {
  if (why != nullptr) *why += cat(why->empty() ? "" : "; ", reason);
}

}  // namespace

DeviceConditions conditions(int index, std::string* why) {
  DeviceConditions c;
  const Found found = gpu_of(index);
  if (found.gpu == nullptr) return add(why, found.obstacle), c;
  const Nvml& n = nvml();
  const auto answers = [&](const char* what, auto* function, auto... arguments) {
    const int status = function != nullptr ? function(found.gpu, arguments...) : kFunctionNotFound;
    if (status != kSuccess) add(why, cat(what, ": ", n.text(status)));
    return status == kSuccess;
  };
  unsigned value = 0;
  if (answers("clock of the multiprocessors", n.clock, kClockOfSms, &value)) c.clock_mhz = value;
  if (answers("clock of the memory", n.clock, kClockOfMemory, &value)) c.memory_mhz = value;
  if (answers("power", n.power, &value)) c.watts = 1e-3 * value;
  if (answers("power limit", n.power_limit, &value)) c.watt_limit = 1e-3 * value;
  if (Temperature t; n.temperature == nullptr && n.newer_temperature != nullptr) {
    if (answers("temperature", n.newer_temperature, &t)) c.celsius = t.celsius;
  } else if (answers("temperature", n.temperature, kSensorOfGpu, &value)) {
    c.celsius = value;
  }
  if (unsigned long long reasons = 0; answers("clock limits", n.reasons, &reasons)) {
    c.limits = limits_of(reasons);
    c.limits_known = true;
  }
  if (Utilization u{}; answers("utilization", n.utilization, &u)) c.busy = 1e-2 * u.gpu;
  return c;
}

std::string driver_version() {
  const Nvml& n = nvml();
  char text[80] = {};  // NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE
  const bool ok = n.obstacle.empty() && n.driver_version != nullptr && n.driver_version(text, sizeof text) == kSuccess;
  return ok ? text : "";
}

}  // namespace gt::cuda
