// A fake libnccl over plain memory, for ranks that are threads of one process. It is as strict as the real one where
// callers could be careless. Communicators are non-blocking. Every call stays "in progress" until all ranks have made
// it, one at a time. A call that differs between ranks is an error. Sums are in rank order. FAKE_NCCL_VERSION: the
// version it reports; FAKE_NCCL_FAIL_AT: the number of a call that fails. On a stream of the emulated device that is
// being captured, a call becomes part of the graph, which completes when all ranks run theirs. A call that is in a
// graph on one rank but not on another is an error. A communicator ends, also by an abort, once all graphs with calls
// of it are destroyed.
#include "tests/parallel/fake_nccl/fake_nccl.h"

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/core/combine.h"
#include "parallel/comm/gpu/nccl_api.h"

using namespace gt;
using nccl::UniqueId;

namespace {

enum Kind { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kMessage, kGroup };

struct Transfer {  // one send or receive of a group
  int peer = 0;
  const void* from = nullptr;
  void* to = nullptr;
  size_t bytes = 0;
};

struct Part {  // one rank's call
  const void* from = nullptr;
  void* to = nullptr;
  std::vector<Transfer> transfers = {};
};

struct Call {
  Kind kind{};
  size_t count = 0;
  int type = 0, op = 0;
  bool captured = false;
  std::vector<Part> parts;
  int arrived = 0;
  size_t left = 0;                                 // transfers of a group
  bool done = false, wrong = false, torn = false;  // torn: a rank has aborted
};

struct World {
  int ranks = 0, joined = 0;
  std::map<uint64_t, std::shared_ptr<Call>> calls;  // by number
  bool torn = false;                                // a rank has aborted
  // Transfers of groups whose other side has not come, by (source, destination), in the order of the calls.
  std::map<std::pair<int, int>, std::deque<std::pair<Transfer, std::shared_ptr<Call>>>> waiting;
};

struct Rank {
  std::shared_ptr<World> world;
  int rank = 0;
  uint64_t posted = 0;
  std::shared_ptr<Call> now;
  int failure = nccl::kSuccess;
  bool aborted = false, capturing = false;  // capturing: a call was just captured and not yet polled
  int64_t launching_until = 0;              // ns; of its last call
  std::atomic<int> in_graphs{0};            // calls
  std::string error;
};

std::mutex mutex;
std::map<std::string, std::shared_ptr<World>> worlds;  // by id
uint64_t ids = 0;
FakeNccl control;
std::vector<std::unique_ptr<Rank>> all_ranks;  // including ended ones, which graphs may refer to

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

size_t size_of_type(int t) {
  if (t == nccl::kUint8) return 1;
  if (t == nccl::kFloat16 || t == nccl::kBfloat16) return 2;
  return t == nccl::kInt32 || t == nccl::kFloat32 ? 4 : 8;
}

DType dtype_of(int t) {
  switch (t) {
    case nccl::kInt32: return DType::kI32;
    case nccl::kInt64: return DType::kI64;
    case nccl::kFloat16: return DType::kF16;
    case nccl::kBfloat16: return DType::kBF16;
    case nccl::kFloat32: return DType::kF32;
    case nccl::kFloat64: return DType::kF64;
    default: return DType::kByte;
  }
}

void sum(const Call& c, size_t at, size_t n, std::byte* out) {
  std::vector<const std::byte*> from;
  const size_t e = size_of_type(c.type);
  for (const Part& p : c.parts) from.push_back(static_cast<const std::byte*>(p.from) + at * e);
  std::vector<std::byte> result(n * e);
  const ReduceOp op = c.op == nccl::kMax ? ReduceOp::kMax : c.op == nccl::kMin ? ReduceOp::kMin : ReduceOp::kSum;
  const auto ranks = static_cast<int>(from.size());
  reduce_in_order(result.data(), from.data(), ranks, static_cast<int64_t>(n), dtype_of(c.type), op);
  std::memcpy(out, result.data(), result.size());
}

// Executes a call that all ranks have made.
void carry_out(Call& c) {
  const size_t bytes = c.count * size_of_type(c.type), ranks = c.parts.size();
  const auto at = [](void* p, size_t offset) { return static_cast<std::byte*>(p) + offset; };
  switch (c.kind) {
    case kAllReduce:
      sum(c, 0, c.count, at(c.parts[0].to, 0));
      for (size_t r = 1; r < ranks; ++r) std::memmove(c.parts[r].to, c.parts[0].to, bytes);
      break;
    case kReduceScatter: {
      std::vector<std::byte> all(bytes * ranks);
      sum(c, 0, c.count * ranks, all.data());
      for (size_t r = 0; r < ranks; ++r) std::memcpy(c.parts[r].to, all.data() + r * bytes, bytes);
      break;
    }
    case kAllGather:
      for (size_t r = 0; r < ranks; ++r)
        for (const Part& p : c.parts) std::memmove(at(p.to, r * bytes), c.parts[r].from, bytes);
      break;
    case kBroadcast:
      for (const Part& p : c.parts) std::memmove(p.to, c.parts[static_cast<size_t>(c.op)].from, bytes);
      break;
    case kGroup: break;
    case kMessage:
      for (size_t r = 0; r < 2; ++r) {
        const Part &to = c.parts[r], &from = c.parts[1 - r];
        if (to.to != nullptr && from.from != nullptr) std::memmove(to.to, from.from, bytes);
      }
      break;
  }
  c.done = true;
}

int refuse(Rank& r, int failure, const char* why) {
  r.error = why;
  return r.failure = failure;
}

int state_of(Rank& r) {
  if (r.failure != nccl::kSuccess) return r.failure;
  if (r.world->joined < r.world->ranks) return nccl::kInProgress;
  if (r.now != nullptr && (r.now->torn || (r.now->kind == kGroup && !r.now->done && r.world->torn)))
    return refuse(r, 6, "a rank has aborted");
  if (r.now != nullptr && r.now->wrong) return refuse(r, 5, "the ranks made different calls");
  if (r.now != nullptr && (!r.now->done || now_ns() < r.launching_until)) return nccl::kInProgress;
  return std::exchange(r.capturing, false) ? nccl::kInProgress : nccl::kSuccess;
}

struct Request {
  Kind kind{};
  size_t count = 0;
  int type = 0, op = 0;
  Part part;
};

// Sends and receives of a group find each other in any order. A part of another size than expected is an error.
int arrive_group(Rank& r, const std::vector<Transfer>& transfers) {
  r.now = std::make_shared<Call>();
  r.now->kind = kGroup, r.now->left = transfers.size(), r.now->done = transfers.empty();
  for (const Transfer& t : transfers) {
    auto& queue = r.world->waiting[t.from != nullptr ? std::pair(r.rank, t.peer) : std::pair(t.peer, r.rank)];
    if (queue.empty() || (queue.front().first.from != nullptr) == (t.from != nullptr)) {
      queue.emplace_back(t, r.now);
      continue;
    }
    const auto [other, call] = queue.front();
    queue.pop_front();
    if (other.bytes != t.bytes)
      call->wrong = r.now->wrong = true;
    else
      std::memcpy(t.to != nullptr ? t.to : other.to, t.from != nullptr ? t.from : other.from, t.bytes);
    for (Call* c : {call.get(), r.now.get()}) c->done = --c->left == 0;
  }
  return state_of(r);
}

int arrive(Rank& r, const Request& w, bool captured) {
  const auto& [kind, count, type, op, part] = w;
  if (r.failure != nccl::kSuccess) return r.failure;  // calls behind the failure in a graph
  ++control.calls;
  if (control.calls == control.fail_at) return refuse(r, 6, "a network cable was pulled");
  if (kind == kGroup) return arrive_group(r, part.transfers);
  auto& c = r.world->calls[r.posted];
  if (c == nullptr) {
    c = std::make_shared<Call>();
    *c = {kind, count, type, op, captured, std::vector<Part>(static_cast<size_t>(r.world->ranks))};
  }
  if (c->kind != kind || c->count != count || c->type != type || c->op != op || c->captured != captured)
    c->wrong = true;
  c->parts[static_cast<size_t>(r.rank)] = part;
  r.now = c;
  if (++c->arrived == r.world->ranks) {
    if (!c->wrong && !c->torn) carry_out(*c);
    r.world->calls.erase(r.posted);
  }
  ++r.posted;
  return state_of(r);
}

// Reports to the emulated device, if it is running, which memory a call reads and writes, on which stream; nullptr: on
// the one that runs a graph.
void report_transfer(const Rank& r, const Request& w, void* stream) {
  using Report = void (*)(void* stream, const void* from, size_t, void* to, size_t);
  void* library = dlopen("libgpttrain_cuda.so", RTLD_NOW | RTLD_NOLOAD);
  static const auto report =
      library == nullptr ? nullptr : reinterpret_cast<Report>(dlsym(library, "gpttrain_emulated_transfer"));
  if (report == nullptr) return;
  for (const Transfer& t : w.part.transfers) report(stream, t.from, t.bytes, t.to, t.bytes);
  if (w.kind == kGroup) return;
  const size_t bytes = w.count * size_of_type(w.type), ranks = static_cast<size_t>(r.world->ranks);
  const bool sends = w.part.from != nullptr && (w.kind != kBroadcast || r.rank == w.op);
  report(stream, sends ? w.part.from : nullptr, w.kind == kReduceScatter ? bytes * ranks : bytes, w.part.to,
         w.kind == kAllGather ? bytes * ranks : bytes);
}

// Runs a call of a graph when the device reaches it.
void run_captured(Rank& r, const Request& w) {
  report_transfer(r, w, nullptr);
  std::unique_lock lock(mutex);
  if (!r.aborted) arrive(r, w, true);
  while (!r.aborted && state_of(r) == nccl::kInProgress) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    lock.lock();
  }
}

// Hook of the emulated device, if it is running.
using Keep = bool (*)(void* stream, void (*work)(void*), void* what, void (*drop)(void*));
Keep emulated_keep() {
  void* library = dlopen("libgpttrain_cuda.so", RTLD_NOW | RTLD_NOLOAD);
  return library == nullptr ? nullptr : reinterpret_cast<Keep>(dlsym(library, "gpttrain_emulated_keep"));
}

// Each rank is a thread, so calls of one thread are launched on one device.
void launch(Rank& r) {
  static thread_local Rank* latest = nullptr;
  if (latest != nullptr && latest != &r && now_ns() < latest->launching_until) ++control.races;
  latest = &r;
  if (r.posted > 0) r.launching_until = now_ns() + 1000 * control.launch_us;
}

void await_graphs(Rank& r) {
  while (r.in_graphs > 0 || control.graphs_live) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

int call(nccl::Comm comm, const Request& w, void* stream) {
  static const Keep keep = emulated_keep();
  struct Captured {
    Rank* rank;
    Request request;
  };
  const std::lock_guard lock(mutex);
  Rank& r = *reinterpret_cast<Rank*>(comm);
  if (const int now = state_of(r); now != nccl::kSuccess)
    return now == nccl::kInProgress ? refuse(r, 5, "a call while the one before is in progress") : now;
  if (keep != nullptr) {
    auto* captured = new Captured{&r, w};
    ++r.in_graphs;
    const auto run = [](void* p) {
      run_captured(*static_cast<Captured*>(p)->rank, static_cast<Captured*>(p)->request);
    };
    const auto drop = [](void* p) {
      --static_cast<Captured*>(p)->rank->in_graphs;
      delete static_cast<Captured*>(p);
    };
    if (keep(stream, run, captured, drop)) {
      r.capturing = true;
      return nccl::kInProgress;
    }
    drop(captured);
  }
  launch(r);
  report_transfer(r, w, stream);
  return arrive(r, w, false);
}

// Between ncclGroupStart and ncclGroupEnd of this thread: sends and receives on one communicator.
struct Group {
  bool open = false;
  nccl::Comm comm = nullptr;
  void* stream = nullptr;
  std::vector<Transfer> transfers = {};
  int add(nccl::Comm c, void* s, const Transfer& t) {
    if (comm != nullptr && (comm != c || stream != s)) return 5;
    comm = c, stream = s;
    transfers.push_back(t);
    return 0;
  }
};
thread_local Group group;

}  // namespace

extern "C" {

FakeNccl* fake_nccl_control() { return &control; }

int ncclGetVersion(int* v) {
  const char* text = std::getenv("FAKE_NCCL_VERSION");
  *v = text != nullptr ? std::atoi(text) : 23203;
  if (const char* at = std::getenv("FAKE_NCCL_FAIL_AT")) control.fail_at = std::atoll(at);
  return 0;
}

int ncclGetUniqueId(UniqueId* id) {
  const std::lock_guard lock(mutex);
  *id = {};
  std::memcpy(id->internal, &++ids, sizeof ids);
  return 0;
}

int ncclCommInitRankConfig(nccl::Comm* comm, int ranks, UniqueId id, int rank, nccl::Config* config) {
  const std::lock_guard lock(mutex);
  if (config->magic != 0xcafebeef || config->blocking != 0 || rank < 0 || rank >= ranks) return 4;
  if (control.refuse_init) return 5;
  auto& world = worlds[std::string(id.internal, sizeof id.internal)];
  if (world == nullptr) world = std::make_shared<World>();
  world->ranks = ranks;
  ++world->joined;
  Rank* r = all_ranks.emplace_back(std::make_unique<Rank>()).get();
  r->world = world;
  r->rank = rank;
  *comm = reinterpret_cast<nccl::Comm>(r);
  ++control.comms;
  if (config->max_ctas == 4) ++control.narrow_comms;
  return nccl::kInProgress;
}

int ncclCommGetAsyncError(nccl::Comm comm, int* now) {
  const std::lock_guard lock(mutex);
  *now = state_of(*reinterpret_cast<Rank*>(comm));
  return 0;
}

int ncclCommFinalize(nccl::Comm comm) {
  const std::lock_guard lock(mutex);
  return state_of(*reinterpret_cast<Rank*>(comm)) == nccl::kSuccess ? 0 : 5;
}
int ncclCommDestroy(nccl::Comm comm) {
  await_graphs(*reinterpret_cast<Rank*>(comm));
  const std::lock_guard lock(mutex);
  --control.comms;
  return 0;
}
int ncclCommAbort(nccl::Comm comm) {
  auto* r = reinterpret_cast<Rank*>(comm);
  std::unique_lock lock(mutex);
  if (r->now != nullptr && !r->now->done) r->now->torn = true;  // it will never be executed
  r->aborted = r->world->torn = true;
  ++control.signalled;
  lock.unlock();
  await_graphs(*r);
  lock.lock();
  --control.comms;
  ++control.aborted;
  return 0;
}

int ncclAllReduce(const void* from, void* to, size_t n, int type, int op, nccl::Comm c, void* s) {
  return call(c, {kAllReduce, n, type, op, {from, to}}, s);
}
int ncclReduceScatter(const void* from, void* to, size_t n, int type, int op, nccl::Comm c, void* s) {
  return call(c, {kReduceScatter, n, type, op, {from, to}}, s);
}
int ncclAllGather(const void* from, void* to, size_t n, int type, nccl::Comm c, void* s) {
  return call(c, {kAllGather, n, type, 0, {from, to}}, s);
}
int ncclBroadcast(const void* from, void* to, size_t n, int type, int root, nccl::Comm c, void* s) {
  return call(c, {kBroadcast, n, type, root, {from, to}}, s);
}
int ncclGroupStart() {
  group = Group{.open = true};
  return 0;
}
int ncclGroupEnd() {
  group.open = false;
  if (group.comm == nullptr) return 0;
  return call(group.comm, {kGroup, 0, nccl::kUint8, 0, {nullptr, nullptr, group.transfers}}, group.stream);
}
int ncclSend(const void* from, size_t n, int type, int peer, nccl::Comm c, void* s) {
  if (group.open) return group.add(c, s, {peer, from, nullptr, n * size_of_type(type)});
  return call(c, {kMessage, n, type, 0, {from, nullptr}}, s);
}
int ncclRecv(void* to, size_t n, int type, int peer, nccl::Comm c, void* s) {
  if (group.open) return group.add(c, s, {peer, nullptr, to, n * size_of_type(type)});
  return call(c, {kMessage, n, type, 0, {nullptr, to}}, s);
}

const char* ncclGetErrorString(int r) {
  return r == 6 ? "remote process exited or there was a network error" : r == 5 ? "invalid usage" : "an error";
}
const char* ncclGetLastError(nccl::Comm c) { return c != nullptr ? reinterpret_cast<Rank*>(c)->error.c_str() : ""; }

}  // extern "C"
