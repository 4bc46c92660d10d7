// A libnvidia-ml.so.1 for machines without one: two GPUs on the emulation's buses, numbered in reverse. Each answers by
// how often its clock was queried: idle and cold before anything is measured, then high, then low, then constant. All
// values differ.
//   GPTTRAIN_FAKE_NVML_REFUSES="nvmlDeviceGetPowerUsage nvmlInit_v2"   functions that return "Not Supported"
//   GPTTRAIN_FAKE_NVML_IDLE=1   samples after the first three find an idle device, cold and slow
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace {

constexpr int kSuccess = 0, kNotSupported = 3, kNotFound = 6;

struct State {
  unsigned sm_mhz, milliwatts, celsius, percent_busy;
  unsigned long long reasons;
};
struct Gpu {
  const char* bus;
  unsigned memory_mhz, limit_milliwatts;
  State states[5];  // idle at the start, high, low, constant; idle at the end
  int at = -1;
};
Gpu gpus[] = {{"EE00:01:00.0",
               3201,
               500'000,
               {{210, 60'000, 30, 0, 1},
                {1700, 488'250, 81, 100, 0x48},
                {1100, 310'500, 47, 90, 0x40},
                {1305, 402'750, 72, 95, 0x40},
                {225, 61'000, 33, 0, 1}}},
              {"EE00:00:00.0",
               2619,
               700'000,
               {{345, 70'000, 31, 0, 1},
                {1980, 698'125, 66, 100, 0},
                {1200, 250'500, 41, 90, 0x1006},
                {1755, 412'250, 58, 95, 0x4},
                {360, 71'000, 34, 0, 1}}}};
std::mutex mutex;

bool refused(const char* function) {
  const char* list = std::getenv("GPTTRAIN_FAKE_NVML_REFUSES");
  return list != nullptr && std::strstr(list, function) != nullptr;
}

const State& state_of(const Gpu* gpu) {
  const int last = std::getenv("GPTTRAIN_FAKE_NVML_IDLE") != nullptr ? 4 : 3;
  return gpu->states[std::clamp(gpu->at, 0, last)];
}

}  // namespace

#define ANSWER(...)                            \
  if (refused(__func__)) return kNotSupported; \
  const std::lock_guard lock(mutex);           \
  __VA_ARGS__;                                 \
  return kSuccess

extern "C" {

int nvmlInit_v2() { ANSWER(); }
const char* nvmlErrorString(int status) { return status == kNotSupported ? "Not Supported" : "Not Found"; }
int nvmlSystemGetDriverVersion(char* text, unsigned) { ANSWER(std::strcpy(text, "580.65.06")); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu** gpu) { ANSWER(*gpu = &gpus[index]); }
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, Gpu** gpu) {
  if (refused(__func__)) return kNotSupported;
  for (Gpu& g : gpus)
    if (std::strcmp(bus, g.bus) == 0) return *gpu = &g, kSuccess;
  return kNotFound;
}
int nvmlDeviceGetClockInfo(Gpu* gpu, int type, unsigned* mhz) {
  ANSWER(*mhz = type == 1 ? (++gpu->at, state_of(gpu).sm_mhz) : type == 2 ? gpu->memory_mhz : 7);
}
int nvmlDeviceGetPowerUsage(Gpu* gpu, unsigned* milliwatts) { ANSWER(*milliwatts = state_of(gpu).milliwatts); }
int nvmlDeviceGetEnforcedPowerLimit(Gpu* gpu, unsigned* milliwatts) { ANSWER(*milliwatts = gpu->limit_milliwatts); }
#ifdef FAKE_NVML_RENAMED  // clock reasons as before CUDA 12.2, the temperature query as required since CUDA 13
struct Temperature {
  unsigned version;
  int sensor, celsius;
};
int nvmlDeviceGetTemperatureV(Gpu* gpu, Temperature* t) {
  if (t->version != 0x100000C) return 25;  // NVML_ERROR_ARGUMENT_VERSION_MISMATCH
  ANSWER(t->celsius = t->sensor == 0 ? static_cast<int>(state_of(gpu).celsius) : 7);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Gpu* gpu, unsigned long long* reasons) {
#else
int nvmlDeviceGetTemperature(Gpu* gpu, int sensor, unsigned* celsius) {
  ANSWER(*celsius = sensor == 0 ? state_of(gpu).celsius : 7);
}
int nvmlDeviceGetCurrentClocksEventReasons(Gpu* gpu, unsigned long long* reasons) {
#endif
  ANSWER(*reasons = state_of(gpu).reasons);
}
int nvmlDeviceGetUtilizationRates(Gpu* gpu, unsigned* percent) {
  ANSWER(percent[0] = state_of(gpu).percent_busy; percent[1] = 7);
}

}  // extern "C"
