// The NCCL functions that the trainer calls, loaded at run time from libnccl.so.2. One binary serves machines with and
// without NCCL, and building needs nothing of it. Declarations are our own; values and layouts match nccl.h since 2.18
// (checked against 2.32).
#pragma once
#include <climits>
#include <cstddef>
#include <memory>
#include <string>

namespace gt::nccl {

using Comm = struct OpaqueComm*;

struct UniqueId {
  char internal[128];
};
static_assert(sizeof(UniqueId) == 128);

// ncclResult_t
constexpr int kSuccess = 0, kInProgress = 7;
// ncclDataType_t
constexpr int kUint8 = 1, kInt32 = 2, kInt64 = 4, kFloat16 = 6, kFloat32 = 7, kFloat64 = 8, kBfloat16 = 9;
// ncclRedOp_t
constexpr int kSum = 0, kMax = 2, kMin = 3;

// ncclConfig_t as of 2.18; later versions use defaults for fields beyond `size`.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21801;
  int blocking = INT_MIN;  // INT_MIN, nullptr: NCCL's default
  int cga_cluster_size = INT_MIN, min_ctas = INT_MIN, max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
  int behind = INT_MIN;  // a field of later versions: left undefined, as they require
};
static_assert(sizeof(Config) == 48 && offsetof(Config, blocking) == 16 && offsetof(Config, max_ctas) == 28 &&
              offsetof(Config, net_name) == 32 && offsetof(Config, split_share) == 40);

constexpr int kLeastVersion = 21800;          // of ncclGetVersion: major * 10000 + minor * 100 + patch
constexpr int kSharedDeviceVersion = 23000;   // several ranks may use one GPU
constexpr int kNodesInGraphsVersion = 23004;  // graphs replayed by older versions have hung across nodes

struct Api {
  int version = 0;
  std::string path;  // of the loaded library

  int (*get_version)(int*) = nullptr;
  int (*get_unique_id)(UniqueId*) = nullptr;
  int (*comm_init_rank_config)(Comm*, int ranks, UniqueId, int rank, Config*) = nullptr;
  int (*comm_finalize)(Comm) = nullptr;
  int (*comm_destroy)(Comm) = nullptr;
  int (*comm_abort)(Comm) = nullptr;
  int (*comm_get_async_error)(Comm, int*) = nullptr;
  int (*all_reduce)(const void* from, void* to, size_t count, int type, int op, Comm, void* stream) = nullptr;
  int (*reduce_scatter)(const void* from, void* to, size_t to_count, int type, int op, Comm, void* stream) = nullptr;
  int (*all_gather)(const void* from, void* to, size_t from_count, int type, Comm, void* stream) = nullptr;
  int (*broadcast)(const void* from, void* to, size_t count, int type, int root, Comm, void* stream) = nullptr;
  int (*send)(const void*, size_t count, int type, int peer, Comm, void* stream) = nullptr;
  int (*recv)(void*, size_t count, int type, int peer, Comm, void* stream) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  const char* (*get_error_string)(int) = nullptr;
  const char* (*get_last_error)(Comm) = nullptr;

  // "NCCL 2.32.3 (/usr/lib/libnccl.so.2)"
  std::string describe() const;
};

// `library`: a path, or a name for the dynamic loader; "": libnccl.so.2. Returns nullptr, with the reason in *why, if
// there is none, if it lacks a function, or if it is older than kLeastVersion. The library stays loaded.
std::shared_ptr<const Api> load(const std::string& library, std::string* why);

std::string version_text(int version);  // 23203: "2.32.3"

// Sets variables that NCCL reads at its first call in a process: call before load()'s result is used. Variables set by
// the user are kept, except NCCL_ALGO where the bits of a run depend on it.
struct Environment {
  bool deterministic = true;  // sums in the order of a single ring
  int sharers = 1;            // ranks that share this rank's GPU
};
void set_environment(const Environment&);

}  // namespace gt::nccl
