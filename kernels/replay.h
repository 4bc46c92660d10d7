// Work that calls the same ops with the same arguments again and again, replayed as graphs of the device
// (DeviceApi::capture). The first time it runs as ever, and a Recording notes its calls. From then on the host runs it
// again - tape, scopes and arenas see no difference - but a call that is the recorded one is not queued: when all calls
// of a stretch have come, the stretch is launched at a stroke. A call that differs first runs what was held back, then
// the rest of the work as ever. So a graph never computes anything but the calls that were made, whatever changed.
// Copies, events and waits are parts of no graph: they cut the work into stretches and find on the stream all that came
// before them. Collectives of a library that can be captured take part (SideCalls). Knows no tape, no microbatch and no
// rank.
#pragma once
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace gt {

// A twin of `inner`, a backend whose device has graphs: what is called through its tables goes through, seen by the
// recording that runs on this thread. Whoever uses the stream of a recording while it runs must call through the twin.
// One inner backend a process.
const Backend& replayable(const Backend& inner);

// How often work ran as what.
struct ReplayCounts {
  int64_t first = 0;     // queued call by call and noted: first uses
  int64_t replayed = 0;  // as graphs
  int64_t eager = 0;     // queued call by call although it had been noted
  std::string why;       // the last of these
  void add(const ReplayCounts& more);
};

// A call of a library that works on streams of its own, beside the recorded one; what it means is the library's affair.
struct SideCall {
  class SideCalls* of = nullptr;
  uint64_t words[7] = {};  // compared to the bit
};

// That library, as recordings see it. Its work leaves the recorded stream and comes back to it.
class SideCalls {
 public:
  virtual ~SideCalls() = default;
  // Queues call `number` of a recording; `captured`: becomes part of the graph that is being captured.
  virtual void make(const SideCall&, size_t number, Stream recorded, bool captured) = 0;
  // The recorded stream waits for all that make() has queued since the last time.
  virtual void close(Stream recorded, bool captured) = 0;
  // A graph that has these calls is about to be captured or launched: earlier work of theirs is over, for this stream.
  virtual void settle(std::span<const SideCall>, Stream recorded) = 0;
  // It has been launched.
  virtual void launched(std::span<const SideCall>, Stream recorded) = 0;
  // Collective over all ranks that take part in these calls, which have captured them too: whether all of them could.
  virtual bool agree(std::span<const SideCall>, bool good) = 0;
};

// Graphs that recordings hold.
struct HeldGraphs {
  int64_t graphs = 0, calls = 0;  // calls: in all of them
  int64_t bytes = 0;              // by which the device's free memory was less when they had been made and launched
  void add(const HeldGraphs& more) { graphs += more.graphs, calls += more.calls, bytes += more.bytes; }
};

class Recording {
 public:
  // `twin`: replayable(). Outlived by stream and twin.
  Recording(const Backend& twin, Stream);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // Runs `work`, whose calls this thread makes on the stream through the twin. When it returns all are queued.
  template <class Work>
  void run(ReplayCounts& counts, Work work) {
    begin();
    try {
      work();
    } catch (...) { abandon(std::current_exception()); }
    end(counts);
  }

  HeldGraphs held() const;

  // A library's call on the recorded stream. kOutside: it is part of no recording, make it. kNoted: make it, and say
  // what number it got. kHeldBack: do not make it; what waits for it asks with `run` and `number`.
  enum class Fate { kOutside, kNoted, kHeldBack };
  struct Answer {
    Fate fate = Fate::kOutside;
    uint64_t run = 0;   // of all runs of this process' recordings
    size_t number = 0;  // of the call in its recording
  };
  static Answer side_call(const SideCall&, Stream);
  static uint64_t current_run();  // on this thread; 0: none, or it holds nothing back any more

  // While it lives, what this thread queues takes no part in the running recording and comes before what that holds back.
  class Aside {
   public:
    Aside();
    ~Aside();
    Aside(const Aside&) = delete;
    Aside& operator=(const Aside&) = delete;

   private:
    Recording* const before_;
  };

  struct Kind;  // of a call: its name, how to compare and to make it

 private:
  friend struct Twin;
  struct Call {
    const Kind* kind;
    size_t at;  // of its arguments in args_
  };
  struct Stretch {
    size_t begin, end;  // of calls_
    Graph graph = nullptr;        // from its second run on, where it is worth one
    int64_t bytes = 0;            // of the graph
    std::vector<SideCall> sides;  // of its calls, from its second run on
  };
  void begin();
  void end(ReplayCounts&);
  [[noreturn]] void abandon(std::exception_ptr);
  bool holds_back(const Kind&, const void* args);
  void note(const Kind&, const void* args);
  void cut();
  void launch(Stretch&);
  bool capture(Stretch&, int64_t* free_bytes);
  std::string named(const Stretch&, const std::string& why) const;
  Graph graph_of(size_t begin, size_t end, std::string* why) const;
  void queue(size_t begin, size_t end, bool captured) const;
  const SideCall& side_at(size_t call) const;
  void leave(std::string why);
  void forget();
  void forget_broken();

  const Backend& inner_;
  const Stream stream_;
  std::vector<Call> calls_;
  std::vector<std::byte> args_;
  std::vector<Stretch> stretches_;
  bool noted_ = false;            // calls_ is complete
  int strikes_ = 0;               // runs that went another way than noted; at kMostStrikes nothing is noted any more
  size_t next_ = 0, queued_ = 0;  // of the running work: calls that came; those that are on the stream
  size_t stretch_ = 0, noted_from_ = 0;
  uint64_t run_ = 0;
  SideCalls* sides_ = nullptr;  // whose calls are among them
  std::exception_ptr unfinished_;  // of a call that must not throw: it left part of the running work out
  std::string why_;  // the running work, or all from now on, is queued call by call
};

}  // namespace gt
