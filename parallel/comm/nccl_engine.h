// Private to the NCCL backend: the communicators of one rank, the calls that they have not ended, and who watches them.
// Collectives take part in recordings (kernels/replay.h) where options allow it: in a graph the lane's stream leaves the
// computing one by an event and comes back by another. What is captured is never asked about: neither calls nor their
// ends are seen by the host, which watches the graph as a whole.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/replay.h"
#include "parallel/comm/call.h"
#include "parallel/comm/nccl_group.h"
#include "parallel/comm/side_channel.h"

namespace gt {

// A communicator with a stream of its own: its calls start in the order of their posting, each when NCCL has taken the
// one before, for a non-blocking communicator may say "in progress" until the other ranks have come too.
struct NcclLane {
  enum State { kNoId, kStarting, kIdle, kIssuing };
  State state = kNoId;
  nccl::Comm comm = nullptr;
  Stream stream;
  int rank = 0, size = 0, max_ctas = INT_MIN;
  int source = -1;  // world rank whose note brings the id
  Note note;
  std::string label;
  struct NcclCall *head = nullptr, *tail = nullptr;  // posted and not taken by NCCL
  GroupTrace* trace = nullptr;  // of its group, like the counters
  CommCounters* counters = nullptr;
  uint64_t seq = 0;  // of its last call
  // Where calls may be captured: whether all ranks say true, asked of the host's groups.
  std::function<bool(bool)> agree;
  Event fork = nullptr, last = nullptr;  // of captures; of the lane's own calls when a graph follows them
  bool loose = false;                    // it has had calls of its own since `last`
  bool warm = false;    // NCCL has taken a call of it: further ones are launched without the peers, as a rule
  int64_t issued = 0;   // when its last call was made
  uint64_t seen = 0;                     // by a walk over the lanes of a graph
};

struct NcclCall {
  CommCall call;
  std::byte *a = nullptr, *b = nullptr;  // inout, full or message; shard
  NcclLane* lane = nullptr;
  uint64_t index = 0, seq = 0;
  int64_t started = 0;
  Event ready = nullptr, done = nullptr;  // of the caller's stream at the post; of the lane's at the end
  bool has_ready = false, launched = false, waited = false;
  bool in_graph = false;  // stands for a graph, from its launch to its end; the call is the first of those in it
  uint64_t noted_run = 0;  // of the recording that has noted it, by this number
  size_t noted_number = 0;
  NcclCall* next = nullptr;  // in its lane
};

class NcclEngine final : public SideCalls {
 public:
  NcclEngine(SideChannel&, std::shared_ptr<const nccl::Api>, const DeviceApi&, int index, void* (*raw)(Stream),
             NcclOptions);
  ~NcclEngine() override;

  // A lane of `size` ranks. Rank 0 makes the id itself; others with `source` >= 0 take it from that rank's note.
  // `agree`: its calls may be captured.
  NcclLane& add_lane(int rank, int size, const std::string& label, GroupTrace&, CommCounters&,
                     std::function<bool(bool)> agree = {});
  nccl::UniqueId new_id();
  void start(NcclLane&, const nccl::UniqueId&);
  void start_from_note(NcclLane&, int source, const Note&);
  void remove(NcclLane&);  // its calls have ended or never will

  uint64_t post(NcclLane&, const CommCall&, const Tensor& a, const Tensor& b, Stream after, uint64_t seq);
  const CommCall& wait(uint64_t ticket, Stream);
  void poll();
  void abort(const std::string& why, Exit code);  // ends what runs on the device; the first reason stays
  bool broken() const { return broken_.load(std::memory_order_acquire); }
  void set_deadline(std::chrono::milliseconds d) { deadline_ns_.store(std::chrono::nanoseconds(d).count()); }
  SideChannel& side() { return side_; }
  const NcclOptions& options() const { return options_; }

  void make(const SideCall&, size_t number, Stream recorded, bool captured) override;
  void close(Stream recorded, bool captured) override;
  void settle(std::span<const SideCall>, Stream recorded) override;
  void launched(std::span<const SideCall>, Stream recorded) override;
  bool agree(std::span<const SideCall>, bool good) override;

 private:
  struct Branch {  // queued for a recording, and not awaited by its stream
    size_t number;
    uint64_t ticket;  // of a call; a captured one: the place of its event
  };
  void start_locked(NcclLane&, const nccl::UniqueId&);
  void finalize(NcclLane&);
  void advance(NcclLane&);
  void advance_all();
  void reclaim();  // calls that have ended on the device and have been waited for
  int issue(const NcclCall&);
  void let_launch();
  void taken(NcclLane&);
  NcclCall& fresh_call();
  uint64_t post_locked(NcclLane&, const CommCall&, std::byte* a, std::byte* b, Stream after, uint64_t seq);
  const CommCall& wait_held(uint64_t ticket, Stream);
  void capture(NcclLane&, const NcclCall&, size_t number, Stream recorded, std::unique_lock<std::mutex>&);
  void await_captured(NcclLane&, const NcclCall&, std::unique_lock<std::mutex>&);
  void join(const Branch&, Stream recorded, bool captured);
  template <class Visit>
  void each_lane(std::span<const SideCall>, Visit);
  bool in_progress(NcclLane&, const CommCall*);
  void require(int result, nccl::Comm, const std::string& what);
  void throw_if_broken();
  template <class Ready>
  void host_wait(Ready, const NcclCall&);  // of nccl_engine.cpp alone
  void stand_still(NcclLane&);             // NCCL has taken all that was posted
  void watch();
  void abort_locked(const std::string& why, Exit code);
  void end_comm(nccl::Comm);

  SideChannel& side_;
  const std::shared_ptr<const nccl::Api> api_;
  const DeviceApi& device_;
  const int index_;
  void* (*const raw_)(Stream);
  const NcclOptions options_;
  std::atomic<int64_t> deadline_ns_;

  std::mutex mutex_;  // all below; held for short calls of NCCL only
  std::vector<std::unique_ptr<NcclLane>> lanes_;
  std::deque<NcclCall> calls_;
  std::vector<NcclCall*> free_, open_;  // open: posted and not reclaimed, oldest first
  // Of the rank's thread alone: recordings.
  std::vector<Branch> branches_;
  std::vector<Event> branch_ends_;    // of captured calls; used again by every capture
  size_t captured_ = 0;               // of them, by the capture that runs
  std::vector<CommCall> held_calls_;  // by number, of the running recording
  Stream held_stream_;
  uint64_t walk_ = 0;

  std::atomic<bool> broken_{false};
  struct Endings;
  const std::shared_ptr<Endings> endings_;
  GroupTrace* shown_ = nullptr;  // whose wait of the device the board tells of
  std::string failure_;
  Exit failure_code_ = Exit::kInternal;

  std::condition_variable ending_;
  bool ends_ = false;
  std::thread watch_;
};

}  // namespace gt
