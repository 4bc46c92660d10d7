// Replays work that issues the same op calls every time as device graphs (DeviceApi::capture). The first run executes
// normally while a Recording records its calls. Later runs execute the same host code; tape, FSDP units and arenas are
// unaffected. A call that matches its record is held back instead of queued. Once every call of a segment has matched,
// the segment is launched as one graph. On a mismatch the held-back calls run first, then the rest runs eagerly. So a
// graph never computes anything but the calls that were made. Copies, events and waits are never captured: they split
// the work into segments and are ordered after all earlier calls on the stream. Collectives of a capturable library
// take part (SideCalls). Independent of tapes, microbatches and ranks.
#pragma once
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace gt {

// Returns a recording wrapper of `inner`, a backend whose device has graphs. Calls through its tables are forwarded and
// observed by the recording active on this thread. While a recording is active, its stream must only be used through
// this wrapper. One inner backend per process.
const Backend& replayable(const Backend& inner);

// Counts of how work was executed.
struct ReplayCounts {
  int64_t first = 0;     // first uses: queued call by call and recorded
  int64_t replayed = 0;  // launched as graphs
  int64_t eager = 0;     // queued call by call despite a record
  std::string why;       // reason of the last eager run
  void add(const ReplayCounts& more);
};

// A call of a library that uses its own streams beside the recorded one. Its contents are opaque to recordings.
struct SideCall {
  class SideCalls* of = nullptr;
  uint64_t words[7] = {};  // compared bitwise
};

// Interface of such a library to recordings. Its work forks from the recorded stream and joins it again.
class SideCalls {
 public:
  virtual ~SideCalls() = default;
  // Queues call `number` of a recording; `captured`: into the graph being captured.
  virtual void make(const SideCall&, size_t number, Stream recorded, bool captured) = 0;
  // Joins: the recorded stream waits for everything make() has queued since the last close().
  virtual void close(Stream recorded, bool captured) = 0;
  // Called before a graph with these calls is captured or launched: completes their earlier work for this stream.
  virtual void settle(std::span<const SideCall>, Stream recorded) = 0;
  // Called after that graph was launched.
  virtual void launched(std::span<const SideCall>, Stream recorded) = 0;
  // Collective over all ranks of these calls, which have captured them too: returns whether every rank succeeded.
  virtual bool agree(std::span<const SideCall>, bool good) = 0;
};

// Graphs held by recordings.
struct HeldGraphs {
  int64_t graphs = 0, calls = 0;  // calls: total over all graphs
  int64_t bytes = 0;              // drop in free device memory after they were created and launched
  void add(const HeldGraphs& more) { graphs += more.graphs, calls += more.calls, bytes += more.bytes; }
};

class Recording {
 public:
  // `recorder`: from replayable(). Stream and recorder must outlive the recording.
  Recording(const Backend& recorder, Stream);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // Runs `work`, whose calls this thread makes on the stream through the recorder. On return all of them are queued.
  template <class Work>
  void run(ReplayCounts& counts, Work work) {
    begin();
    try {
      work();
    } catch (...) { abandon(std::current_exception()); }
    end(counts);
  }

  HeldGraphs held() const;

  // Reports a library call on the recorded stream. kOutside: not recorded, execute it. kRecorded: execute it; it was
  // recorded under `number`. kHeldBack: do not execute it; dependents refer to it by `run` and `number`.
  enum class Fate { kOutside, kRecorded, kHeldBack };
  struct Answer {
    Fate fate = Fate::kOutside;
    uint64_t run = 0;   // unique over all runs of this process' recordings
    size_t number = 0;  // index of the call in its recording
  };
  static Answer side_call(const SideCall&, Stream);
  static uint64_t current_run();  // of this thread; 0: no recording is active, or it no longer holds calls back

  // While alive, calls of this thread bypass the active recording and are queued before its held-back calls.
  class Bypass {
   public:
    Bypass();
    ~Bypass();
    Bypass(const Bypass&) = delete;
    Bypass& operator=(const Bypass&) = delete;

   private:
    Recording* const before_;
  };

  struct Kind;  // of a call: its name, how to compare and execute it

 private:
  friend struct RecordingBackend;
  struct Call {
    const Kind* kind;
    size_t at;  // offset of its arguments in args_
  };
  struct GraphSegment {
    size_t begin, end;            // range of calls_
    Graph graph = nullptr;        // from the second run on, where worthwhile
    int64_t bytes = 0;            // of the graph
    std::vector<SideCall> sides;  // its side calls, from the second run on
  };
  void begin();
  void end(ReplayCounts&);
  [[noreturn]] void abandon(std::exception_ptr);
  bool holds_back(const Kind&, const void* args);
  void record(const Kind&, const void* args);
  void cut();
  void launch(GraphSegment&);
  bool capture(GraphSegment&, int64_t* free_bytes);
  std::string named(const GraphSegment&, const std::string& why) const;
  Graph graph_of(size_t begin, size_t end, std::string* why) const;
  void queue(size_t begin, size_t end, bool captured) const;
  const SideCall& side_at(size_t call) const;
  void leave(std::string why);
  void clear();
  void clear_noexcept();

  const Backend& inner_;
  const Stream stream_;
  std::vector<Call> calls_;
  std::vector<std::byte> args_;
  std::vector<GraphSegment> segments_;
  bool recorded_ = false;         // calls_ is complete
  int strikes_ = 0;               // runs that mismatched; at kMostStrikes recording stops
  size_t next_ = 0, queued_ = 0;  // in the current run: calls made; calls queued on the stream
  size_t segment_ = 0, segment_begin_ = 0;
  uint64_t run_ = 0;
  SideCalls* sides_ = nullptr;     // library of the side calls among them
  std::exception_ptr unfinished_;  // from a call that must not throw: part of the current run was not executed
  std::string why_;                // why the current run, or every later one, is queued call by call
};

}  // namespace gt
