#include "parallel/comm/threads/thread_group.h"

#include <algorithm>
#include <cstring>

#include "kernels/core/combine.h"
#include "parallel/comm/self_group.h"
#include "parallel/comm/threads/thread_state.h"

namespace gt {
namespace {

constexpr int64_t kItemBytes = 128 << 10;  // a work item: small enough to share, large enough to amortize claiming it
constexpr int64_t kInline = 16 << 10;      // up to this many bytes the last rank to arrive does all the work

int64_t pieces(int64_t elements, DType t) {
  const int64_t per_item = kItemBytes / size_of(t);
  return (elements + per_item - 1) / per_item;
}

void copy_unless_same(std::byte* to, const std::byte* from, int64_t bytes) {
  if (to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

// Parts of the full tensor that are processed separately: one, or one per rank.
int parts_of(const ThreadCollective& c, int size) {
  return c.call.op == CommOp::kAllGather || c.call.op == CommOp::kReduceScatter ? size : 1;
}

// Work items of a call: chunks of its parts, or pairs of ranks.
int64_t items_of(const ThreadCollective& c, int size) {
  if (c.call.is_empty() || c.call.op == CommOp::kBarrier) return 0;
  if (c.call.is_all_to_all()) return int64_t{size} * size;
  return parts_of(c, size) * pieces(c.call.count / parts_of(c, size), c.call.dtype);
}

// Moves the part of an all_to_all that rank k / size sends to rank k % size.
void move_part(ThreadCollective& c, int size, int64_t k) {
  const ThreadPart p = part_of(c, static_cast<int>(k / size), static_cast<int>(k % size));
  if (p.bytes > 0) std::memcpy(p.to, p.from, static_cast<size_t>(p.bytes));
}

// Processes item k: chunk k % chunks of part k / chunks. Items touch disjoint elements, so their order does not matter.
void do_item(ThreadCollective& c, int size, int64_t k) {
  if (c.call.is_all_to_all()) return move_part(c, size, k);
  const int64_t e = size_of(c.call.dtype), part_elements = c.call.count / parts_of(c, size);
  const int64_t per_part = pieces(part_elements, c.call.dtype), part = k / per_part;
  const int64_t begin = k % per_part * (kItemBytes / e), n = std::min(kItemBytes / e, part_elements - begin);
  const int64_t in_part = begin * e, in_full = (part * part_elements + begin) * e;
  switch (c.call.op) {
    case CommOp::kAllReduce:
    case CommOp::kReduceScatter: {
      constexpr size_t kMany = 64;
      const std::byte* few[kMany];
      std::vector<const std::byte*> many;
      const std::byte** from = few;
      if (c.a.size() > kMany) many.resize(c.a.size()), from = many.data();
      for (size_t r = 0; r < c.a.size(); ++r) from[r] = c.a[r].data + in_full;
      const bool scatter = c.call.op == CommOp::kReduceScatter;
      std::byte* out = scatter ? c.b[static_cast<size_t>(part)].data + in_part : c.a[0].data + in_full;
      reduce_in_order(out, from, size, n, c.call.dtype, c.call.reduce);
      if (!scatter) {
        for (size_t r = 1; r < c.a.size(); ++r) copy_unless_same(c.a[r].data + in_full, out, n * e);
      }
      break;
    }
    case CommOp::kAllGather: {
      const std::byte* from = c.b[static_cast<size_t>(part)].data + in_part;
      for (const Tensor& full : c.a) copy_unless_same(full.data + in_full, from, n * e);
      break;
    }
    case CommOp::kBroadcast: {
      const std::byte* from = c.a[static_cast<size_t>(c.call.peer)].data + in_full;
      for (const Tensor& t : c.a) copy_unless_same(t.data + in_full, from, n * e);
      break;
    }
    default: break;
  }
}

class ThreadGroup final : public ProcessGroup {
 public:
  ThreadGroup(ThreadGroupState& state, int rank, int number)
      : ProcessGroup(rank, static_cast<int>(state.ranks.size())),
        state_(state),
        world_(state.world),
        events_(state.device) {
    trace_ = GroupTrace(world_.board, state.ranks[static_cast<size_t>(rank)], static_cast<uint64_t>(number),
                        state.ranks.front(), rank, size());
  }
  ~ThreadGroup() override;

  std::string_view backend() const override { return state_.device.api != nullptr ? "direct" : "thread"; }
  Work all_reduce(Tensor t, ReduceOp op, Stream s) override { return post(all_reduce_call(*this, t, op), t, {}, s); }
  Work all_gather(Tensor shard, Tensor full, Stream s) override {
    return post(all_gather_call(*this, shard, full), full, shard, s);
  }
  Work reduce_scatter(Tensor full, Tensor shard, Stream s) override {
    return post(reduce_scatter_call(*this, full, shard), full, shard, s);
  }
  Work broadcast(Tensor t, int root, Stream s) override { return post(broadcast_call(*this, t, root), t, {}, s); }
  Work all_to_all(Tensor send, Tensor recv, const PeerCounts& counts, Stream s) override {
    return post(all_to_all_call(*this, send, recv, counts), send, recv, s, counts);
  }
  Work send(Tensor t, int to, int tag, Stream s) override { return post_message(CommOp::kSend, t, to, tag, s); }
  Work recv(Tensor t, int from, int tag, Stream s) override { return post_message(CommOp::kRecv, t, from, tag, s); }
  void barrier() override { post(CommCall{}, {}, {}, {}).wait({}); }
  void abandon(const std::string& why, Exit code) override {
    world_.abort(state_.ranks[static_cast<size_t>(rank())], why, code);
  }

 protected:
  void wait(uint64_t ticket, Stream s) override {
    ticket & 1 ? wait_message(ticket >> 1, s) : wait_collective(ticket >> 1, s);
  }

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Clock = std::chrono::steady_clock;

  Work post(const CommCall&, const Tensor& a, const Tensor& b, Stream after, const PeerCounts& counts = {});
  void check_parts(const ThreadCollective&, uint64_t seq, Lock&);
  Work post_message(CommOp, const Tensor&, int peer, int tag, Stream after);
  void wait_collective(uint64_t seq, Stream);
  void wait_message(uint64_t index, Stream);
  bool on_device(const CommCall&, const Tensor& a, const Tensor& b) const;
  bool copy_message(const CommCall&, const ThreadMessage& from, ThreadMessage& to, Lock&);
  void queue_message(const CommCall&, const ThreadMessage& from, ThreadMessage& to, DeviceLane&);
  void await(Event done, Stream);
  void work_on(ThreadCollective&, Lock&);
  void finish(ThreadCollective&);
  [[noreturn]] void end_world(Lock&, const std::string& message, Exit);
  template <class Ready, class Report>
  void sleep_until(Lock&, const CommCall&, uint64_t seq, Ready, Report);
  ThreadGroupState::RankState& seat() { return state_.seats[static_cast<size_t>(rank())]; }

  ThreadGroupState& state_;
  ThreadWorld::Shared& world_;
  EventPool events_;
};

ThreadGroup::~ThreadGroup() {
  trace_.close();
  std::lock_guard registry(world_.mutex);
  if (--state_.members > 0 || state_.ever < size()) return;
  for (auto it = world_.groups.begin(); it != world_.groups.end(); ++it) {
    if (it->second.get() == &state_) {
      world_.groups.erase(it);
      return;
    }
  }
}

void ThreadGroup::end_world(Lock& lock, const std::string& message, Exit code) {
  lock.unlock();
  world_.abort(state_.ranks[static_cast<size_t>(rank())], message, code);
  throw Error(message, code);
}

// Sleeps until ready() or the end of the world; report() returns the error text of a wait past its deadline.
template <class Ready, class Report>
void ThreadGroup::sleep_until(Lock& lock, const CommCall& call, uint64_t seq, Ready ready, Report report) {
  if (ready()) return;
  const Clock::time_point limit = Clock::now() + world_.deadline;
  struct Waiting {  // reset on return and on exceptions
    GroupTrace& trace;
    ~Waiting() { trace.end_wait(); }
  } waiting{trace_};
  trace_.begin_wait(call, seq, steady_ns());
  while (!ready()) {
    if (world_.failed.load(std::memory_order_acquire)) {
      lock.unlock();
      world_.throw_failure();
    }
    if (seat().wake.wait_until(lock, limit) == std::cv_status::timeout && !ready() &&
        !world_.failed.load(std::memory_order_acquire)) {
      end_world(lock, report(), Exit::kHang);
    }
  }
}

// Returns whether the device moves these tensors; throws if neither the device nor the host can.
bool ThreadGroup::on_device(const CommCall& call, const Tensor& a, const Tensor& b) const {
  if (call.is_empty() || call.op == CommOp::kBarrier) return false;
  const SharedDevice& d = state_.device;
  if (d.api != nullptr && a.device.kind != DeviceKind::kCpu) {
    GT_CHECK((!b || b.device.kind == a.device.kind) && a.device.index == d.index, label(), ": ", to_string(call),
             " of tensors on different devices");
    return true;
  }
  require_host(*this, a);
  if (b) require_host(*this, b);
  return false;
}

// Waits for the end of a call on the device: on stream `s` or, without one, on the host.
void ThreadGroup::await(Event done, Stream s) {
  if (s.native != nullptr)
    state_.device.api->wait(done, s);
  else
    state_.device.api->await(done);
}

// Requires: all ranks have made this all_to_all, and none moves data yet.
void ThreadGroup::check_parts(const ThreadCollective& c, uint64_t seq, Lock& lock) {
  for (int from = 0; from < size(); ++from)
    for (int to = 0; to < size(); ++to) {
      const int64_t sent = c.offsets[static_cast<size_t>(from)].sends(to);
      const int64_t expected = c.offsets[static_cast<size_t>(to)].expects(from);
      if (sent != expected)
        end_world(
            lock,
            cat(label(), ": collective #", seq, " differs between ranks: ", parts_differ(from, sent, to, expected)),
            Exit::kInternal);
    }
}

Work ThreadGroup::post(const CommCall& call, const Tensor& a, const Tensor& b, Stream after, const PeerCounts& counts) {
  const bool there = on_device(call, a, b);
  world_.check();
  const Event ready = there ? events_.mark(after) : nullptr;
  const size_t me = static_cast<size_t>(rank());
  const int64_t now = steady_ns();
  Lock lock(state_.mutex);
  const uint64_t seq = seat().posted++;
  trace_.collective(call, seq, now);
  seat().last = call;
  seat().any = true;
  ThreadCollective& c = state_.slot(seq);
  if (c.arrived == 0) {
    c.call = call;
    c.first_rank = rank();
    c.on_device = there;
    c.items = items_of(c, size());
  } else if (!c.call.agrees(call) || c.on_device != there) {
    const auto shown = [](const CommCall& k, bool device) { return cat(to_string(k), device ? " on the device" : ""); };
    end_world(lock,
              cat(label(), ": collective #", seq, " differs between ranks: ", state_.who(c.first_rank), " called ",
                  shown(c.call, c.on_device), ", ", state_.who(rank()), " called ", shown(call, there)),
              Exit::kInternal);
  }
  c.a[me] = a;
  c.b[me] = b;
  c.ready[me] = ready;
  c.started[me] = now;
  if (call.is_all_to_all()) c.offsets[me].set(call, counts, size());
  count_call(counters_, call, rank(), size(), counts);
  if (call.is_all_to_all() && c.arrived + 1 == size()) check_parts(c, seq, lock);
  if (++c.arrived == size()) {
    if (there) {
      queue_collective(state_.device, state_.lane.stream(state_.device), c, size());
      c.complete = true;
      c.finished = steady_ns();
      state_.wake_all();
    } else if (call.bytes() <= kInline) {
      work_on(c, lock);
    } else {
      state_.wake_all();
    }
  }
  record_blocked(call.op, call.bytes(), now, false);
  return Work(this, seq << 1);
}

// Processes items until none is left. Requires: the lock is held; it is released meanwhile.
void ThreadGroup::work_on(ThreadCollective& c, Lock& lock) {
  lock.unlock();
  world_.touching.fetch_add(1);
  int64_t mine = 0;
  while (!world_.failed.load()) {
    const int64_t k = c.claimed.fetch_add(1, std::memory_order_relaxed);
    if (k >= c.items) break;
    do_item(c, size(), k);
    ++mine;
  }
  const bool last = c.finished_items.fetch_add(mine, std::memory_order_acq_rel) + mine == c.items;
  world_.touching.fetch_sub(1);
  lock.lock();
  if (last && !c.complete && !world_.failed.load()) {
    c.complete = true;
    c.finished = steady_ns();
    state_.wake_all();
  }
}

void ThreadGroup::wait_collective(uint64_t seq, Stream s) {
  const int64_t begin = steady_ns();
  Lock lock(state_.mutex);
  ThreadCollective& c = state_.slot(seq);
  sleep_until(
      lock, c.call, seq, [&] { return c.arrived == size(); },
      [&] {
        std::string missing;
        for (int r = 0; r < size(); ++r) {
          if (state_.seats[static_cast<size_t>(r)].posted <= seq)
            missing += cat("; ", state_.who(r), ", ", state_.last_call(r));
        }
        return cat(label(), ": ", state_.who(rank()), " waited ", world_.deadline.count(), " ms in ", to_string(c.call),
                   " #", seq, "; not arrived: ", missing.substr(2));
      });
  if (!c.complete && !c.on_device) work_on(c, lock);
  sleep_until(
      lock, c.call, seq, [&] { return c.complete; },
      [&] {
        return cat(label(), ": ", state_.who(rank()), " waited ", world_.deadline.count(), " ms in ", to_string(c.call),
                   " #", seq, "; all ranks have arrived, but one of them does not finish its part");
      });
  if (c.on_device) {
    const Event done = c.done;  // the slot belongs to this call until this rank departs
    lock.unlock();
    await(done, s);
    lock.lock();
    events_.give(c.ready[static_cast<size_t>(rank())]);
  }
  counters_.of(c.call.op).flight_ns += c.finished - c.started[static_cast<size_t>(rank())];
  record_blocked(c.call.op, c.call.bytes(), begin, true);
  if (++c.departed == size()) c.used = false;
}

// Copies a message whose sides have both arrived. Returns false if the world has failed meanwhile.
bool ThreadGroup::copy_message(const CommCall& call, const ThreadMessage& from, ThreadMessage& to, Lock& lock) {
  lock.unlock();
  world_.touching.fetch_add(1);
  const bool alive = !world_.failed.load();
  if (alive) std::memcpy(to.data, from.data, static_cast<size_t>(call.bytes()));
  world_.touching.fetch_sub(1);
  lock.lock();
  return alive;
}

// The same on the device, where the copy counts as complete once it is queued.
void ThreadGroup::queue_message(const CommCall& call, const ThreadMessage& from, ThreadMessage& to, DeviceLane& lane) {
  const DeviceApi& api = *state_.device.api;
  const Stream s = lane.stream(state_.device);
  for (Event ready : {from.ready, to.ready})
    if (ready != nullptr) api.wait(ready, s);
  api.copy(to.data, from.data, call.bytes(), s);
  for (Event done : {from.done, to.done}) api.record(done, s);
}

Work ThreadGroup::post_message(CommOp op, const Tensor& t, int peer, int tag, Stream after) {
  const CommCall call = message_call(*this, op, t, peer, tag);
  const bool there = on_device(call, t, {});
  world_.check();
  const Event ready = there ? events_.mark(after) : nullptr;
  const bool send = op == CommOp::kSend;
  const int64_t now = steady_ns();
  Lock lock(state_.mutex);
  trace_.message(call, seat().messages++, now);
  seat().last = call;
  seat().any = true;
  count_call(counters_, call, rank(), size());
  ThreadMessage& mine = state_.message();
  mine.call = call;
  mine.data = t.data;
  mine.owner = rank();
  mine.started = now;
  mine.on_device = there;
  mine.ready = ready;
  if (there && mine.done == nullptr) mine.done = state_.device.api->create_event(state_.device.index);
  auto& channel = state_.channels[send ? std::tuple(rank(), peer, tag) : std::tuple(peer, rank(), tag)];
  if (channel.head == nullptr || channel.sends == send) {  // the other side has not arrived: queue
    channel.sends = send;
    (channel.head == nullptr ? channel.head : channel.tail->next) = &mine;
    channel.tail = &mine;
    record_blocked(op, call.bytes(), now, false);
    return Work(this, mine.index << 1 | 1);
  }
  ThreadMessage& other = *channel.head;
  channel.head = other.next;
  if (other.call.count != call.count || other.call.dtype != call.dtype || other.on_device != there) {
    end_world(lock,
              cat(label(), ": a message differs between its ranks: ", state_.who(other.owner), " called ",
                  to_string(other.call), ", ", state_.who(rank()), " called ", to_string(call)),
              Exit::kInternal);
  }
  const ThreadMessage& from = send ? mine : other;
  ThreadMessage& to = send ? other : mine;
  if (there) queue_message(call, from, to, channel.lane);
  if (call.count == 0 || there || copy_message(call, from, to, lock)) {
    mine.complete = other.complete = true;
    mine.finished = other.finished = steady_ns();
  }
  state_.seats[static_cast<size_t>(other.owner)].wake.notify_one();
  record_blocked(op, call.bytes(), now, false);
  return Work(this, mine.index << 1 | 1);
}

void ThreadGroup::wait_message(uint64_t index, Stream s) {
  const int64_t begin = steady_ns();
  Lock lock(state_.mutex);
  ThreadMessage& m = state_.messages[index];
  sleep_until(
      lock, m.call, index, [&] { return m.complete; },
      [&] {
        return cat(label(), ": ", state_.who(rank()), " waited ", world_.deadline.count(), " ms in ", to_string(m.call),
                   "; ", state_.who(m.call.peer), " has not made the matching call, ", state_.last_call(m.call.peer));
      });
  if (m.on_device) {
    const Event done = m.done;
    lock.unlock();
    await(done, s);
    lock.lock();
    events_.give(m.ready);
  }
  counters_.of(m.call.op).flight_ns += m.finished - m.started;
  record_blocked(m.call.op, m.call.bytes(), begin, true);
  state_.free_messages.push_back(index);
}

class ThreadFactory final : public GroupFactory, public SideChannel {
 public:
  ThreadFactory(ThreadWorld::Shared& world, int rank) : world_(world), rank_(rank) {}
  int world_rank() const override { return rank_; }
  int world_size() const override { return world_.size; }
  int local_rank() const override { return rank_; }
  int local_size() const override { return world_.size; }
  std::string_view backend() const override { return "thread"; }
  RankStatus* status() override { return &world_.status[static_cast<size_t>(rank_)]; }

  void open_notes() override {}
  void leave(int to, const Note& note) override {
    const std::lock_guard lock(world_.notes_mutex);
    world_.notes[{rank_, to, note.group, note.tag}].push_back(note);
  }
  bool take(int from, Note& note) override {
    const std::lock_guard lock(world_.notes_mutex);
    const auto it = world_.notes.find({from, rank_, note.group, note.tag});
    if (it == world_.notes.end()) return false;
    note = it->second.front();
    it->second.pop_front();
    if (it->second.empty()) world_.notes.erase(it);
    return true;
  }
  bool world_failed() const override { return world_.failed.load(std::memory_order_acquire); }
  void check() override { world_.check(); }
  GroupTrace trace(uint64_t number, int leader, int rank, int size) override {
    return GroupTrace(world_.board, rank_, number, leader, rank, size);
  }

  std::unique_ptr<GroupFactory> direct(const DeviceApi& api, int index) override;

  std::unique_ptr<ProcessGroup> make(std::span<const int> ranks) override { return make_on({}, ranks); }

  // Does not wait for the others: the first member to arrive creates the shared state.
  std::unique_ptr<ProcessGroup> make_on(const SharedDevice& device, std::span<const int> ranks) {
    const std::vector<int> list(ranks.begin(), ranks.end());
    const auto at = std::find(list.begin(), list.end(), rank_);
    GT_CHECK(
        at != list.end() && std::is_sorted(list.begin(), list.end()) && list.front() >= 0 && list.back() < world_.size,
        "rank ", rank_, " of ", world_.size, " requests the group ", to_string(ranks),
        "; a list is ascending, inside the world and holds its caller");
    std::lock_guard registry(world_.mutex);
    const int number = world_.made[static_cast<size_t>(rank_)]++;
    if (list.size() == 1) return std::make_unique<SelfGroup>(device.api);
    for (auto it = world_.groups.lower_bound({number, {}}); it != world_.groups.end() && it->first.first == number;
         ++it) {
      for (int r : it->first.second) {
        GT_CHECK(it->first.second == list || std::find(list.begin(), list.end(), r) == list.end(), "group call #",
                 number, ": rank ", rank_, " gives ", to_string(ranks), ", another rank ", to_string(it->first.second),
                 "; the lists of one call must partition the world");
      }
    }
    auto& state = world_.groups[{number, list}];
    if (!state) state = std::make_unique<ThreadGroupState>(world_, list, device);
    ++state->members, ++state->ever;
    return std::make_unique<ThreadGroup>(*state, static_cast<int>(at - list.begin()), number);
  }

 private:
  ThreadWorld::Shared& world_;
  int rank_;
};

// Groups of the same threads for tensors on a device that all of them share.
class DirectFactory final : public GroupFactory {
 public:
  DirectFactory(ThreadFactory& threads, const SharedDevice& device) : threads_(threads), device_(device) {}
  int world_rank() const override { return threads_.world_rank(); }
  int world_size() const override { return threads_.world_size(); }
  int local_rank() const override { return threads_.local_rank(); }
  int local_size() const override { return threads_.local_size(); }
  std::string_view backend() const override { return "direct"; }
  RankStatus* status() override { return threads_.status(); }
  std::unique_ptr<ProcessGroup> make(std::span<const int> ranks) override { return threads_.make_on(device_, ranks); }

 private:
  ThreadFactory& threads_;
  const SharedDevice device_;
};

std::unique_ptr<GroupFactory> ThreadFactory::direct(const DeviceApi& api, int index) {
  return std::make_unique<DirectFactory>(*this, SharedDevice{&api, index});
}

}  // namespace

ThreadWorld::ThreadWorld(int ranks, std::chrono::milliseconds deadline) {
  GT_CHECK(ranks > 0 && deadline.count() > 0, ranks, " ranks, deadline ", deadline.count(), " ms");
  shared_ = std::make_unique<Shared>(ranks, deadline);
}
ThreadWorld::~ThreadWorld() = default;

int ThreadWorld::size() const { return shared_->size; }
const CommBoard& ThreadWorld::board() const { return shared_->board; }

std::unique_ptr<GroupFactory> ThreadWorld::factory(int rank) {
  GT_CHECK(rank >= 0 && rank < shared_->size, "rank ", rank, " of ", shared_->size);
  return std::make_unique<ThreadFactory>(*shared_, rank);
}

void ThreadWorld::abort(int rank, const std::string& message, Exit code) { shared_->abort(rank, message, code); }

int ThreadWorld::failed_rank() const {
  return shared_->failed.load(std::memory_order_acquire) ? shared_->failed_rank : -1;
}

}  // namespace gt
