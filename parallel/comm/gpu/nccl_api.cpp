#include "parallel/comm/gpu/nccl_api.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "kernels/core/check.h"

namespace gt::nccl {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";

std::string loader_error() {
  const char* text = dlerror();
  return text != nullptr ? text : "unknown loader error";
}

// Fills every entry; returns the name of the first function that the library lacks, or nullptr.
const char* fill(Api& api, void* library) {
  const char* missing = nullptr;
  const auto find = [&](auto& entry, const char* name) {
    entry = reinterpret_cast<std::decay_t<decltype(entry)>>(dlsym(library, name));
    if (entry == nullptr && missing == nullptr) missing = name;
  };
  find(api.get_version, "ncclGetVersion");
  find(api.get_unique_id, "ncclGetUniqueId");
  find(api.comm_init_rank_config, "ncclCommInitRankConfig");
  find(api.comm_finalize, "ncclCommFinalize");
  find(api.comm_destroy, "ncclCommDestroy");
  find(api.comm_abort, "ncclCommAbort");
  find(api.comm_get_async_error, "ncclCommGetAsyncError");
  find(api.all_reduce, "ncclAllReduce");
  find(api.reduce_scatter, "ncclReduceScatter");
  find(api.all_gather, "ncclAllGather");
  find(api.broadcast, "ncclBroadcast");
  find(api.send, "ncclSend");
  find(api.recv, "ncclRecv");
  find(api.group_start, "ncclGroupStart");
  find(api.group_end, "ncclGroupEnd");
  find(api.get_error_string, "ncclGetErrorString");
  find(api.get_last_error, "ncclGetLastError");
  return missing;
}

}  // namespace

std::string version_text(int v) {
  // Before 2.9 the major version was counted in thousands.
  if (v < 10000) return cat(v / 1000, '.', v % 1000 / 100, '.', v % 100);
  return cat(v / 10000, '.', v % 10000 / 100, '.', v % 100);
}

std::string Api::describe() const { return cat("NCCL ", version_text(version), " (", path, ")"); }

std::shared_ptr<const Api> load(const std::string& library, std::string* why) {
  const std::string name = library.empty() ? kLibrary : library;
  const auto refuse = [&](const std::string& text) {
    if (why != nullptr) *why = text;
    return std::shared_ptr<const Api>();
  };
  void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    return refuse(cat(
        "no NCCL: ", name, " was looked for ",
        name.find('/') == std::string::npos ? "in LD_LIBRARY_PATH and the system's library folders" : "at that path",
        "; loader: ", loader_error(), ". Install NCCL 2.18 or later, or name it with comm.nccl_library"));
  auto api = std::make_shared<Api>();
  const char* missing = fill(*api, handle);
  Dl_info info{};
  api->path = name;
  if (api->get_version != nullptr && dladdr(reinterpret_cast<const void*>(api->get_version), &info) != 0 &&
      info.dli_fname != nullptr)
    api->path = info.dli_fname;
  if (api->get_version == nullptr || api->get_version(&api->version) != kSuccess)
    return refuse(cat(api->path, " is not a supported NCCL: ",
                      missing != nullptr ? cat("it lacks ", missing) : std::string("it reports no version")));
  if (api->version < kLeastVersion)
    return refuse(cat(api->path, " is NCCL ", version_text(api->version), "; ", version_text(kLeastVersion),
                      " or later is needed"));
  if (missing != nullptr) return refuse(cat(api->describe(), " lacks ", missing));
  return api;
}

void set_environment(const Environment& e) {
  static std::mutex mutex;  // ranks may be threads
  const std::lock_guard lock(mutex);
  if (e.deterministic) setenv("NCCL_ALGO", "Ring", 1);
  // Several communicators run concurrently: kernels start in the host's order, which is the same on all ranks.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
  // NCCL launches a call on a non-blocking communicator from a thread of its own. It reports two such concurrent
  // threads as a race of the caller, which would end the run. NcclEngine::pace_launch serializes them, except for calls
  // that wait for their peers to connect. Those may launch in any order, because a launch itself waits for no other
  // rank.
  setenv("NCCL_LAUNCH_RACE_FATAL", "0", 0);
  // Captured calls behave like eager ones: no buffers are registered with other ranks for them.
  setenv("NCCL_GRAPH_REGISTER", "0", 0);
  if (e.sharers == 1) return;
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  if (e.sharers > 2) setenv("NCCL_MAX_CTAS", cat(std::max(1, 16 / e.sharers)).c_str(), 0);
}

}  // namespace gt::nccl
