#include "parallel/comm/gpu/nccl_engine.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>
#include <utility>

#include "parallel/comm/gpu/nccl_tickets.h"

namespace gt {
namespace {

constexpr auto kAbortLimit = std::chrono::seconds(30);  // ncclCommAbort itself has been observed to hang
constexpr auto kAbortPause = std::chrono::seconds(2);   // by then all kernels have received the abort flag
constexpr int64_t kLaunchNs = 200'000;                  // upper bound on NCCL's time to launch a call that needs no
                                                        // peer

int type_of(DType t) {
  switch (t) {
    case DType::kF32: return nccl::kFloat32;
    case DType::kF64: return nccl::kFloat64;
    case DType::kBF16: return nccl::kBfloat16;
    case DType::kF16: return nccl::kFloat16;
    case DType::kI32: return nccl::kInt32;
    case DType::kI64: return nccl::kInt64;
    default: return nccl::kUint8;
  }
}

int op_of(ReduceOp op) { return op == ReduceOp::kMax ? nccl::kMax : op == ReduceOp::kMin ? nccl::kMin : nccl::kSum; }

void rest(int round) {
  if (round < 200)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(std::chrono::microseconds(std::min(20 + round / 8, 500)));
}

void end_stream(const DeviceApi& device, const NcclLane& lane) {
  for (Event e : {lane.fork, lane.last})
    if (e != nullptr) device.destroy_event(e);
  if (lane.stream.native != nullptr) device.close_stream(lane.stream);
}

}  // namespace

// Communicators being aborted, each by its own thread. ncclCommAbort first signals the communicator's kernels to end.
// It then waits for them and for the destruction of all graphs with its calls. We own those graphs and release them
// when the rank's thread unwinds. An abort must therefore block neither the next one nor that thread.
struct NcclEngine::PendingAborts {
  std::mutex mutex;
  std::condition_variable less;
  int left = 0;
  std::chrono::steady_clock::time_point last;  // remaining aborts are not waited for after this time

  void wait(std::chrono::steady_clock::time_point until) {
    std::unique_lock lock(mutex);
    less.wait_until(lock, std::min(until, last), [&] { return left == 0; });
  }
};

NcclEngine::NcclEngine(SideChannel& side, std::shared_ptr<const nccl::Api> api, const DeviceApi& device, int index,
                       void* (*raw)(Stream), NcclOptions options)
    : side_(side),
      api_(std::move(api)),
      device_(device),
      index_(index),
      raw_(raw),
      options_(options),
      deadline_ns_(std::chrono::nanoseconds(options.deadline).count()),
      endings_(std::make_shared<PendingAborts>()) {
  free_.reserve(256);
  open_.reserve(256);
  watch_ = std::thread([this] { watch(); });
}

NcclEngine::~NcclEngine() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  ending_.notify_all();
  watch_.join();
  for (auto& lane : lanes_) {  // of groups whose construction failed
    if (lane->comm != nullptr) end_comm(lane->comm);
    endings_->wait(std::chrono::steady_clock::time_point::max());
    end_stream(device_, *lane);
  }
  for (NcclCall& c : calls_) device_.destroy_event(c.ready), device_.destroy_event(c.done);
  for (Event e : branch_ends_) device_.destroy_event(e);
}

void NcclEngine::require(int result, nccl::Comm comm, const std::string& what) {
  if (result == nccl::kSuccess || result == nccl::kInProgress) return;
  const char* more = comm != nullptr ? api_->get_last_error(comm) : nullptr;
  const std::string text = cat(what, ": ", api_->describe(), ": ", api_->get_error_string(result),
                               more != nullptr && *more != 0 ? cat(": ", more) : std::string());
  abort_locked(text, Exit::kInternal);
  fail(Exit::kInternal, text);
}

void NcclEngine::throw_if_broken() {
  side_.check();
  if (broken()) fail(failure_code_, failure_);
}

NcclLane& NcclEngine::add_lane(int rank, int size, const std::string& label, GroupTrace& trace, CommCounters& counters,
                               std::function<bool(bool)> agree) {
  const std::lock_guard lock(mutex_);
  NcclLane& lane = *lanes_.emplace_back(std::make_unique<NcclLane>());
  lane.rank = rank;
  lane.size = size;
  lane.label = label;
  lane.trace = &trace;
  lane.counters = &counters;
  lane.agree = std::move(agree);
  return lane;
}

nccl::UniqueId NcclEngine::new_id() {
  const std::lock_guard lock(mutex_);
  nccl::UniqueId id{};
  require(api_->get_unique_id(&id), nullptr, "ncclGetUniqueId");
  return id;
}

void NcclEngine::start(NcclLane& lane, const nccl::UniqueId& id) {
  const std::lock_guard lock(mutex_);
  start_locked(lane, id);
}

void NcclEngine::start_locked(NcclLane& lane, const nccl::UniqueId& id) {
  lane.stream = device_.open_stream(index_, 1);  // also selects the device, which NCCL uses from here on
  if (lane.agree) lane.fork = device_.create_event(index_), lane.last = device_.create_event(index_);
  nccl::Config config;
  config.blocking = 0;
  config.max_ctas = lane.max_ctas;
  lane.state = NcclLane::kStarting;
  require(api_->comm_init_rank_config(&lane.comm, lane.size, id, lane.rank, &config), lane.comm,
          cat(lane.label, ": ncclCommInitRankConfig"));
}

void NcclEngine::start_from_note(NcclLane& lane, int source, const Note& note) {
  lane.source = source;
  lane.note = note;
}

// Polls a communicator that returned "in progress", from its creation or from this call; throws its error, if any.
bool NcclEngine::in_progress(NcclLane& lane, const CommCall* call) {
  int now = nccl::kSuccess;
  require(api_->comm_get_async_error(lane.comm, &now), lane.comm, cat(lane.label, ": ncclCommGetAsyncError"));
  require(now, lane.comm,
          call == nullptr ? cat(lane.label, ": making a communicator") : cat(lane.label, ": ", to_string(*call)));
  return now == nccl::kInProgress;
}

int NcclEngine::issue(const NcclCall& c) {
  const NcclLane& lane = *c.lane;
  void* stream = raw_(lane.stream);
  const int type = type_of(c.call.dtype), op = op_of(c.call.reduce);
  const auto count = static_cast<size_t>(c.call.count), bytes = static_cast<size_t>(c.call.bytes());
  const auto ranks = static_cast<size_t>(lane.size);
  switch (c.call.op) {
    case CommOp::kAllReduce: return api_->all_reduce(c.a, c.a, count, type, op, lane.comm, stream);
    case CommOp::kReduceScatter: return api_->reduce_scatter(c.a, c.b, count / ranks, type, op, lane.comm, stream);
    case CommOp::kAllGather: return api_->all_gather(c.b, c.a, bytes / ranks, nccl::kUint8, lane.comm, stream);
    case CommOp::kBroadcast: return api_->broadcast(c.a, c.a, bytes, nccl::kUint8, c.call.peer, lane.comm, stream);
    case CommOp::kSend: return api_->send(c.a, bytes, nccl::kUint8, 1 - lane.rank, lane.comm, stream);
    case CommOp::kRecv: return api_->recv(c.a, bytes, nccl::kUint8, 1 - lane.rank, lane.comm, stream);
    case CommOp::kAllToAll:
    case CommOp::kAllToAllV: return exchange_parts(c);
    case CommOp::kBarrier: break;
  }
  return nccl::kSuccess;
}

// Sends and receives of one group run concurrently, this rank's own part included.
int NcclEngine::exchange_parts(const NcclCall& c) {
  const NcclLane& lane = *c.lane;
  void* stream = raw_(lane.stream);
  const int64_t e = size_of(c.call.dtype);
  int result = api_->group_start();
  const auto check = [&](int now) {
    if (result == nccl::kSuccess || result == nccl::kInProgress) result = now;
  };
  for (int r = 0; r < lane.size; ++r) {
    const auto sent = static_cast<size_t>(c.offsets.sends(r) * e), got = static_cast<size_t>(c.offsets.expects(r) * e);
    const int64_t from = c.offsets.send[static_cast<size_t>(r)] * e, to = c.offsets.recv[static_cast<size_t>(r)] * e;
    if (sent > 0) check(api_->send(c.a + from, sent, nccl::kUint8, r, lane.comm, stream));
    if (got > 0) check(api_->recv(c.b + to, got, nccl::kUint8, r, lane.comm, stream));
  }
  check(api_->group_end());
  return result;
}

namespace {
constexpr uint64_t kPartsTag = uint64_t{1} << 40;  // beyond the tags of messages

struct PartsNote {
  int64_t sends, expects;
};
}  // namespace

// NCCL compares no sizes: ranks that disagree would hang or overwrite memory. Every rank sends both counts to each
// other one over the host's transport.
void NcclEngine::leave_parts(const NcclCall& c) {
  const NcclLane& lane = *c.lane;
  for (int r = 0; r < lane.size; ++r) {
    if (r == lane.rank) continue;
    Note note{lane.number, kPartsTag + c.seq, {}};
    const PartsNote parts{c.offsets.sends(r), c.offsets.expects(r)};
    std::memcpy(note.text.data(), &parts, sizeof parts);
    side_.leave(lane.peers[static_cast<size_t>(r)], note);
  }
}

// Returns whether every rank's counts have arrived; throws if one of them differs.
bool NcclEngine::parts_agree(NcclCall& c) {
  const NcclLane& lane = *c.lane;
  for (; c.compared < lane.size; ++c.compared) {
    const int r = c.compared;
    if (r == lane.rank) continue;
    Note note{lane.number, kPartsTag + c.seq, {}};
    if (!side_.take(lane.peers[static_cast<size_t>(r)], note)) return false;
    PartsNote theirs{};
    std::memcpy(&theirs, note.text.data(), sizeof theirs);
    const int64_t sent = c.offsets.sends(r), expected = c.offsets.expects(r);
    if (theirs.sends == expected && theirs.expects == sent) continue;
    const std::string how = theirs.sends != expected ? parts_differ(r, theirs.sends, lane.rank, expected)
                                                     : parts_differ(lane.rank, sent, r, theirs.expects);
    const std::string text = cat(lane.label, ": collective #", c.seq, " differs between ranks: ", how);
    abort_locked(text, Exit::kInternal);
    fail(Exit::kInternal, text);
  }
  return true;
}

// Calls are launched in the order in which they are made (nccl::set_environment). Waits for calls in progress as long
// as a launch takes, but no longer. A call may have to wait for its peers, and they for this rank's next action.
void NcclEngine::pace_launch() {
  for (auto& lane : lanes_)
    while (lane->state == NcclLane::kIssuing && lane->warm && steady_ns() - lane->issued < kLaunchNs) {
      std::this_thread::yield();
      advance(*lane);
    }
}

// NCCL has accepted the lane's first call.
void NcclEngine::taken(NcclLane& lane) {
  NcclCall& c = *lane.head;
  device_.record(c.done, lane.stream);
  c.launched = true;
  lane.head = c.next;
  if (lane.head == nullptr) lane.tail = nullptr;
  lane.state = NcclLane::kIdle;
  lane.loose = lane.warm = true;
}

void NcclEngine::advance(NcclLane& lane) {
  if (lane.state == NcclLane::kStarting || lane.state == NcclLane::kIssuing) {
    const bool issuing = lane.state == NcclLane::kIssuing;
    if (in_progress(lane, issuing ? &lane.head->call : nullptr)) return;
    if (issuing)
      taken(lane);
    else
      lane.state = NcclLane::kIdle;
  }
  while (lane.state == NcclLane::kIdle && lane.head != nullptr) {
    NcclCall& c = *lane.head;
    if (c.call.op == CommOp::kAllToAllV && !parts_agree(c)) return;
    pace_launch();
    if (c.has_ready) device_.wait(c.ready, lane.stream);
    const int result = c.call.is_empty() ? nccl::kSuccess : issue(c);
    lane.issued = steady_ns();
    lane.state = NcclLane::kIssuing;
    require(result, lane.comm, cat(lane.label, ": ", to_string(c.call)));
    if (result == nccl::kInProgress) return;
    taken(lane);
  }
}

void NcclEngine::advance_all() {
  throw_if_broken();
  for (size_t i = 0; i < lanes_.size(); ++i) {
    NcclLane& lane = *lanes_[i];
    if (lane.state == NcclLane::kNoId && lane.source >= 0 && side_.take(lane.source, lane.note)) {
      nccl::UniqueId id;
      std::memcpy(id.internal, lane.note.text.data(), sizeof id.internal);
      start_locked(lane, id);
    }
    if (lane.state != NcclLane::kNoId) advance(lane);
  }
}

void NcclEngine::reclaim() {
  std::erase_if(open_, [&](NcclCall* c) {
    if (!c->waited || !c->launched || !device_.done(c->done)) return false;
    if (!c->in_graph) c->lane->counters->of(c->call.op).flight_ns += steady_ns() - c->started;
    free_.push_back(c);
    return true;
  });
}

NcclCall& NcclEngine::allocate_call() {
  if (free_.empty()) reclaim();
  if (free_.empty()) {
    NcclCall& fresh = calls_.emplace_back();
    fresh.index = calls_.size() - 1;
    fresh.ready = device_.create_event(index_);
    fresh.done = device_.create_event(index_);
    free_.push_back(&fresh);
  }
  NcclCall& c = *free_.back();
  free_.pop_back();
  c.started = steady_ns();
  c.launched = c.waited = c.in_graph = false;
  c.recorded_run = 0;
  c.compared = 0;
  c.next = nullptr;
  open_.push_back(&c);
  return c;
}

uint64_t NcclEngine::post(NcclLane& lane, const CommCall& call, const Tensor& a, const Tensor& b, Stream after,
                          uint64_t seq, const PeerCounts& counts) {
  Recording::Answer at;
  if (lane.agree && call.op == CommOp::kAllToAllV)
    device_.record(lane.fork, after);  // ends the graph segment: counts differ from step to step
  else if (lane.agree)
    at = Recording::side_call(kept(*this, lane, call, a.data, b.data), after);
  lane.seq = seq;
  if (at.fate == Recording::Fate::kHeldBack) {
    if (held_calls_.size() <= at.number) held_calls_.resize(at.number + 1);
    held_calls_[at.number] = call;
    held_stream_ = after;
    return held_ticket(at);
  }
  std::optional<Recording::Bypass> aside;
  if (at.fate == Recording::Fate::kRecorded) aside.emplace();
  const std::lock_guard lock(mutex_);
  const uint64_t ticket = post_locked(lane, call, a.data, b.data, after, seq, counts);
  calls_[ticket].recorded_run = at.run;
  calls_[ticket].recorded_number = at.number;
  return ticket;
}

uint64_t NcclEngine::post_locked(NcclLane& lane, const CommCall& call, std::byte* a, std::byte* b, Stream after,
                                 uint64_t seq, const PeerCounts& counts) {
  throw_if_broken();
  NcclCall& c = allocate_call();
  c.call = call, c.a = a, c.b = b, c.lane = &lane, c.seq = seq;
  if (call.is_all_to_all()) c.offsets.set(call, counts, lane.size);
  if (call.op == CommOp::kAllToAllV) leave_parts(c);
  c.has_ready = after.native != nullptr;
  if (c.has_ready) device_.record(c.ready, after);
  (lane.head == nullptr ? lane.head : lane.tail->next) = &c;
  lane.tail = &c;
  advance_all();
  return c.index;
}

void NcclEngine::poll() {
  const std::lock_guard lock(mutex_);
  advance_all();
  reclaim();
}

// Blocks the calling thread until ready(), which is evaluated under the lock.
template <class Ready>
void NcclEngine::host_wait(Ready ready, const NcclCall& c) {
  struct Waiting {
    GroupTrace* trace = nullptr;
    ~Waiting() {
      if (trace != nullptr) trace->end_wait();
    }
  } waiting;
  const int64_t begin = steady_ns();
  for (int round = 0;; ++round) {
    {
      const std::lock_guard lock(mutex_);
      advance_all();
      if (ready()) return;
    }
    if (waiting.trace == nullptr) {
      c.lane->trace->begin_wait(c.call, c.seq, begin);
      waiting.trace = c.lane->trace;
    }
    if (c.lane->trace->broken()) fail(Exit::kInternal, c.lane->label, ": ", c.lane->trace->broken_calls());
    if (steady_ns() - begin > deadline_ns_.load()) {
      std::string last;
      for (int r = 0; r < c.lane->size; ++r)
        if (const std::string call = c.lane->trace->last_call(r); r != c.lane->rank && !call.empty())
          last += cat("; rank ", r, ": ", call);
      const std::string text = cat(c.lane->label, ": rank ", c.lane->rank, " waited ", deadline_ns_.load() / 1'000'000,
                                   " ms in ", to_string(c.call), " #", c.seq, ", which NCCL has not ",
                                   c.launched ? "ended" : "begun: other ranks have not made it", last);
      abort(text, Exit::kHang);
      fail(Exit::kHang, text);
    }
    rest(round);
  }
}

const CommCall& NcclEngine::wait(uint64_t ticket, Stream s) {
  if (is_held(ticket)) return wait_held(ticket, s);
  NcclCall& c = calls_[ticket];
  if (c.recorded_run != 0 && c.recorded_run == Recording::current_run())
    Recording::side_call(recorded_wait(*this, c.recorded_number), s);
  // A call that no recording holds may be waited for before the calls that a recording holds back: those depend on it,
  // or not at all.
  std::optional<Recording::Bypass> aside;
  if (c.lane->agree && s.native != nullptr) aside.emplace();
  host_wait([&] { return c.launched && (s.native != nullptr || device_.done(c.done)); }, c);
  const std::lock_guard lock(mutex_);
  if (s.native != nullptr) device_.wait(c.done, s);
  c.waited = true;
  reclaim();
  return c.call;
}

void NcclEngine::drain_lane(NcclLane& lane) {
  if (lane.head != nullptr) host_wait([&] { return lane.head == nullptr; }, *lane.tail);
}

// Ends a communicator whose calls have all been accepted: with its peers, or alone if they do not arrive.
void NcclEngine::finalize(NcclLane& lane) {
  try {
    device_.synchronize(lane.stream);
  } catch (const Error&) { return; }  // called by destructors with the device lost: remove() aborts the rest
  const std::lock_guard lock(mutex_);
  if (lane.comm == nullptr) return;
  int now = api_->comm_finalize(lane.comm);
  const int64_t limit = steady_ns() + std::chrono::nanoseconds(kAbortLimit).count();
  for (int round = 0; now == nccl::kInProgress && !side_.world_failed() && steady_ns() < limit; rest(++round))
    if (api_->comm_get_async_error(lane.comm, &now) != nccl::kSuccess) break;
  if (now == nccl::kSuccess) api_->comm_destroy(std::exchange(lane.comm, nullptr));
}

void NcclEngine::remove(NcclLane& lane) {
  if (lane.state == NcclLane::kIdle && lane.head == nullptr && !broken() && !side_.world_failed() &&
      std::uncaught_exceptions() == 0)
    finalize(lane);
  std::unique_lock lock(mutex_);
  if (nccl::Comm comm = std::exchange(lane.comm, nullptr)) end_comm(comm);
  lock.unlock();  // its graphs are destroyed: the communicator's end is no longer blocked
  endings_->wait(std::chrono::steady_clock::time_point::max());
  lock.lock();
  if (shown_ != nullptr) std::exchange(shown_, nullptr)->end_wait();
  std::erase_if(open_, [&](NcclCall* c) {
    if (c->lane != &lane) return false;
    free_.push_back(c);
    return true;
  });
  end_stream(device_, lane);
  std::erase_if(lanes_, [&](const auto& l) { return l.get() == &lane; });
}

void NcclEngine::abort(const std::string& why, Exit code) {
  const std::lock_guard lock(mutex_);
  abort_locked(why, code);
}

// Returns once the kernels of all communicators have been signalled to end.
void NcclEngine::abort_locked(const std::string& why, Exit code) {
  if (broken()) return;
  failure_ = why;
  failure_code_ = code;
  broken_.store(true, std::memory_order_release);
  for (auto& lane : lanes_)
    if (nccl::Comm comm = std::exchange(lane->comm, nullptr)) end_comm(comm);
  endings_->wait(std::chrono::steady_clock::now() + kAbortPause);
}

void NcclEngine::end_comm(nccl::Comm comm) {
  {
    const std::lock_guard lock(endings_->mutex);
    if (endings_->left++ == 0) endings_->last = std::chrono::steady_clock::now() + kAbortLimit;
  }
  std::thread([all = endings_, api = api_, comm] {
    api->comm_abort(comm);
    const std::lock_guard lock(all->mutex);
    --all->left;
    all->less.notify_all();
  }).detach();
}

// Detects what the rank's own thread, possibly blocked in a device call, cannot: late errors, the end of the world,
// kernels that wait too long. Reports long device waits on the board, for the stall monitor.
void NcclEngine::watch() {
  try {
    // Selects the device for this thread. Otherwise it would query events with the first GPU selected, and CUDA would
    // create a context of half a gigabyte there for every rank.
    device_.destroy_event(device_.create_event(index_));
  } catch (const Error&) {}  // the rank's own thread gets the same error
  std::unique_lock lock(mutex_);
  while (!ending_.wait_for(lock, std::chrono::milliseconds(50), [&] { return ends_; })) {
    if (broken()) continue;
    if (side_.world_failed()) {
      abort_locked("another rank has failed", Exit::kInternal);
      continue;
    }
    try {
      for (auto& lane : lanes_)
        if (lane->comm != nullptr && lane->state == NcclLane::kIdle) {
          int now = nccl::kSuccess;
          require(api_->comm_get_async_error(lane->comm, &now), lane->comm,
                  cat(lane->label, ": ncclCommGetAsyncError"));
          require(now, lane->comm, cat(lane->label, ": work on the device"));
        }
      const int64_t now = steady_ns();
      const auto late = std::find_if(open_.begin(), open_.end(), [&](const NcclCall* c) {
        return c->launched && c->waited && now - c->started > 1'000'000'000 && !device_.done(c->done);
      });
      GroupTrace* before = std::exchange(shown_, late != open_.end() ? (*late)->lane->trace : nullptr);
      if (before != nullptr && before != shown_) before->end_wait();
      if (shown_ == nullptr) continue;
      const NcclCall& c = **late;
      c.lane->trace->begin_wait(c.call, c.seq, c.started);
      if (now - c.started > deadline_ns_.load())
        abort_locked(cat(c.lane->label, ": rank ", c.lane->rank, ": ",
                         c.in_graph ? "a graph of calls, the first of them " : "", to_string(c.call), " #", c.seq,
                         " does not end on the device after ", deadline_ns_.load() / 1'000'000, " ms"),
                     Exit::kHang);
    } catch (const Error&) {}  // stored by abort_locked, for the rank's own thread
  }
}

}  // namespace gt
