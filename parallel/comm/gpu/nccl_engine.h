// Private to the NCCL backend: the communicators of one rank, their outstanding calls, and the thread that watches
// them. If options allow it, collectives are captured in recordings (kernels/replay.h). In a graph the lane's stream
// forks from the compute stream by one event and joins it by another. Captured calls and their completion are not
// tracked individually; the host watches the graph as a whole.
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
#include "parallel/comm/gpu/nccl_group.h"
#include "parallel/comm/side_channel.h"

namespace gt {

// A communicator with its own stream. Calls start in the order of posting, each after NCCL has accepted the previous
// one. A non-blocking communicator may return "in progress" until the other ranks have arrived.
struct NcclLane {
  enum State { kNoId, kStarting, kIdle, kIssuing };
  State state = kNoId;
  nccl::Comm comm = nullptr;
  Stream stream;
  int rank = 0, size = 0, max_ctas = INT_MIN;
  int source = -1;  // world rank whose note carries the id
  Note note;
  std::vector<int> peers;  // world ranks, and the number of the group in notes: where parts are compared
  uint64_t number = 0;
  std::string label;
  struct NcclCall *head = nullptr, *tail = nullptr;  // posted, not yet accepted by NCCL
  GroupTrace* trace = nullptr;                       // of its group, like the counters
  CommCounters* counters = nullptr;
  uint64_t seq = 0;  // of its last call
  // Set if calls may be captured: whether all ranks pass true, agreed over the host's groups.
  std::function<bool(bool)> agree;
  Event fork = nullptr, last = nullptr;  // of captures; of the lane's own calls if a graph follows them
  bool loose = false;                    // it has issued calls of its own since `last`
  bool warm = false;    // NCCL has accepted a call: later ones normally launch without waiting for peers
  int64_t issued = 0;   // when its last call was issued
  uint64_t walked = 0;  // by a traversal of a graph's lanes
};

struct NcclCall {
  CommCall call;
  std::byte *a = nullptr, *b = nullptr;  // inout, full, message or send; shard or recv
  PeerOffsets offsets;                   // of an all_to_all
  int compared = 0;                      // ranks whose parts of an all_to_all_v agree with this rank's
  NcclLane* lane = nullptr;
  uint64_t index = 0, seq = 0;
  int64_t started = 0;
  Event ready = nullptr, done = nullptr;  // on the caller's stream at the post; on the lane's at the end
  bool has_ready = false, launched = false, waited = false;
  bool in_graph = false;      // represents a graph, from its launch to its end; `call` is its first one
  uint64_t recorded_run = 0;  // of the recording that recorded it, under this number
  size_t recorded_number = 0;
  NcclCall* next = nullptr;  // in its lane
};

class NcclEngine final : public SideCalls {
 public:
  NcclEngine(SideChannel&, std::shared_ptr<const nccl::Api>, const DeviceApi&, int index, void* (*raw)(Stream),
             NcclOptions);
  ~NcclEngine() override;

  // Adds a lane of `size` ranks. Rank 0 creates the id itself; others with `source` >= 0 receive it in a note from that
  // rank. `agree`: its calls may be captured.
  NcclLane& add_lane(int rank, int size, const std::string& label, GroupTrace&, CommCounters&,
                     std::function<bool(bool)> agree = {});
  nccl::UniqueId new_id();
  void start(NcclLane&, const nccl::UniqueId&);
  void start_from_note(NcclLane&, int source, const Note&);
  void remove(NcclLane&);  // requires: its calls have ended or never will

  uint64_t post(NcclLane&, const CommCall&, const Tensor& a, const Tensor& b, Stream after, uint64_t seq,
                const PeerCounts& counts = {});
  const CommCall& wait(uint64_t ticket, Stream);
  void poll();
  void abort(const std::string& why, Exit code);  // ends what runs on the device; the first reason is kept
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
  struct Branch {  // queued for a recording, not yet awaited by its stream
    size_t number;
    uint64_t ticket;  // of a call; of a captured one: the index of its event
  };
  void start_locked(NcclLane&, const nccl::UniqueId&);
  void finalize(NcclLane&);
  void advance(NcclLane&);
  void advance_all();
  void reclaim();  // calls that have completed on the device and have been waited for
  int issue(const NcclCall&);
  int exchange_parts(const NcclCall&);
  void leave_parts(const NcclCall&);
  bool parts_agree(NcclCall&);
  void pace_launch();
  void taken(NcclLane&);
  NcclCall& allocate_call();
  uint64_t post_locked(NcclLane&, const CommCall&, std::byte* a, std::byte* b, Stream after, uint64_t seq,
                       const PeerCounts& counts = {});
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
  void host_wait(Ready, const NcclCall&);  // used in nccl_engine.cpp only
  void drain_lane(NcclLane&);              // waits until NCCL has accepted all posted calls
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

  std::mutex mutex_;  // guards all below; held during short NCCL calls only
  std::vector<std::unique_ptr<NcclLane>> lanes_;
  std::deque<NcclCall> calls_;
  std::vector<NcclCall*> free_, open_;  // open: posted and not reclaimed, oldest first
  // Recordings; used by the rank's thread only.
  std::vector<Branch> branches_;
  std::vector<Event> branch_ends_;    // events of captured calls; reused by every capture
  size_t captured_ = 0;               // events used by the running capture
  std::vector<CommCall> held_calls_;  // by number, of the running recording
  Stream held_stream_;
  uint64_t walk_ = 0;

  std::atomic<bool> broken_{false};
  struct PendingAborts;
  const std::shared_ptr<PendingAborts> endings_;
  GroupTrace* shown_ = nullptr;  // group whose device wait the board shows
  std::string failure_;
  Exit failure_code_ = Exit::kInternal;

  std::condition_variable ending_;
  bool ends_ = false;
  std::thread watch_;
};

}  // namespace gt
