// Private to the NCCL backend: the communicators of one rank, the calls that they have not ended, and who watches them.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

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
};

struct NcclCall {
  CommCall call;
  Tensor a, b;  // inout, full or message; shard
  NcclLane* lane = nullptr;
  GroupTrace* trace = nullptr;
  CommCounters* counters = nullptr;
  uint64_t index = 0, seq = 0;
  int64_t started = 0;
  Event ready = nullptr, done = nullptr;  // of the caller's stream at the post; of the lane's at the end
  bool has_ready = false, launched = false, waited = false;
  NcclCall* next = nullptr;  // in its lane
};

class NcclEngine {
 public:
  NcclEngine(SideChannel&, std::shared_ptr<const nccl::Api>, const DeviceApi&, int index, void* (*raw)(Stream),
             NcclOptions);
  ~NcclEngine();

  // A lane of `size` ranks. Rank 0 makes the id itself; others with `source` >= 0 take it from that rank's note.
  NcclLane& add_lane(int rank, int size, const std::string& label);
  nccl::UniqueId new_id();
  void start(NcclLane&, const nccl::UniqueId&);
  void start_from_note(NcclLane&, int source, const Note&);
  void remove(NcclLane&);  // its calls have ended or never will

  uint64_t post(NcclLane&, const CommCall&, const Tensor& a, const Tensor& b, Stream after, GroupTrace&, CommCounters&,
                uint64_t seq);
  const CommCall& wait(uint64_t index, Stream);
  void poll();
  void abort(const std::string& why, Exit code);  // ends what runs on the device; the first reason stays
  bool broken() const { return broken_.load(std::memory_order_acquire); }
  void set_deadline(std::chrono::milliseconds d) { deadline_ns_.store(std::chrono::nanoseconds(d).count()); }
  SideChannel& side() { return side_; }
  const NcclOptions& options() const { return options_; }

 private:
  void start_locked(NcclLane&, const nccl::UniqueId&);
  void finalize(NcclLane&);
  void advance(NcclLane&);
  void advance_all();
  void reclaim();  // calls that have ended on the device and have been waited for
  int issue(const NcclCall&);
  void launched(NcclLane&);
  bool in_progress(NcclLane&);
  void require(int result, nccl::Comm, const std::string& what);
  void throw_if_broken();
  template <class Ready>
  void host_wait(Ready, const NcclCall&);
  void watch();
  void abort_locked(const std::string& why, Exit code);

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
  std::atomic<bool> broken_{false};
  GroupTrace* shown_ = nullptr;  // whose wait of the device the board tells of
  std::string failure_;
  Exit failure_code_ = Exit::kInternal;

  std::condition_variable ending_;
  bool ends_ = false;
  std::thread watch_;
};

}  // namespace gt
