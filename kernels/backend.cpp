#include "kernels/backend.h"

#include <dlfcn.h>

#include <filesystem>
#include <vector>

#include "kernels/cpu/conditions.h"
#include "kernels/cpu/table.h"
#include "kernels/null/null.h"

namespace gt {
namespace {

constexpr const char* kLibrary = "libgpttrain_cuda.so";

struct Loaded {
  const Backend* backend = nullptr;
  std::string why;  // when backend is null
};

// Search order: beside the executable, beside the code that holds this function (they differ when it is in a shared
// library), then the loader's default paths (LD_LIBRARY_PATH).
std::vector<std::string> candidates() {
  std::vector<std::string> list;
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) list.push_back((program.parent_path() / kLibrary).string());
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&candidates), &info) != 0 && info.dli_fname != nullptr) {
    const std::string beside =
        (std::filesystem::weakly_canonical(info.dli_fname, error).parent_path() / kLibrary).string();
    if (!error && (list.empty() || list[0] != beside)) list.push_back(beside);
  }
  return list;
}

std::string load_error() {
  const char* text = dlerror();
  return text != nullptr ? text : "unknown loader error";
}

Loaded load() {
  void* handle = nullptr;
  std::string searched;
  for (const std::string& path : candidates()) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) {
      searched += cat(searched.empty() ? "" : ", ", path);
      continue;
    }
    handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      return {nullptr, cat("the CUDA backend is here but does not load: ", load_error(),
                           ". Install the CUDA 13 runtime libraries or add their folder to LD_LIBRARY_PATH")};
    }
    break;
  }
  if (handle == nullptr) handle = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return {nullptr, cat("no CUDA backend: ", kLibrary, " is not at ", searched, "; loader: ", load_error(),
                         ". Build with a CUDA toolkit (cmake -DGPT_CUDA=ON) or run with --device.kind cpu")};
  }
  using Entry = const Backend* (*)(int abi, const char** why);
  const auto entry = reinterpret_cast<Entry>(dlsym(handle, "gpttrain_backend"));
  if (entry == nullptr) return {nullptr, cat(kLibrary, " is not ours: ", load_error())};
  const char* why = nullptr;
  const Backend* backend = entry(kBackendAbi, &why);
  if (backend == nullptr) return {nullptr, why != nullptr ? why : cat(kLibrary, " refused without a reason")};
  const char* missing = backend->ops != nullptr ? first_missing(*backend->ops) : "its op table";
  if (missing != nullptr)
    return {nullptr, cat(kLibrary, " lacks ", missing, "; rebuild it together with this program")};
  if (backend->device == nullptr || !complete(*backend->device)) {
    return {nullptr, cat(kLibrary, " has an incomplete device table; rebuild it together with this program")};
  }
  return {backend, ""};
}

}  // namespace

const Backend& cpu_backend() {
  static constexpr Backend backend{.kind = DeviceKind::kCpu,
                                   .ops = &cpu::kTable,
                                   .device = &cpu::kDevice,
                                   .weight_copy_bytes = cpu::weight_copy_bytes,
                                   .held_copy_bytes = cpu::held_copy_bytes,
                                   .conditions = cpu::conditions};
  return backend;
}

const Backend& null_backend() {
  static constexpr Backend backend{DeviceKind::kNull, &null::kTable, &null::kDevice};
  return backend;
}

const Backend* cuda_backend(std::string* why) {
  static const Loaded loaded = [] {
    try {
      return load();
    } catch (const std::exception& e) { return Loaded{nullptr, cat("loading ", kLibrary, " failed: ", e.what())}; }
  }();
  if (loaded.backend == nullptr && why != nullptr) *why = loaded.why;
  return loaded.backend;
}

}  // namespace gt
