// Work that calls the same ops with the same arguments again and again, replayed as graphs of the device
// (DeviceApi::capture). The first time it runs as ever, and a Recording notes its calls. From then on the host runs it
// again - tape, scopes and arenas see no difference - but a call that is the recorded one is not queued: when all calls
// of a stretch have come, the stretch is launched at a stroke. A call that differs first runs what was held back, then
// the rest of the work as ever. So a graph never computes anything but the calls that were made, whatever changed.
// Copies, events and waits are parts of no graph: they cut the work into stretches and find on the stream all that came
// before them. Knows no tape, no microbatch and no rank.
#pragma once
#include <memory>
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
    } catch (...) {
      abandon();
      throw;
    }
    end(counts);
  }

  struct Kind;  // of a call: its name, how to compare and to make it

 private:
  friend struct Twin;
  struct Call {
    const Kind* kind;
    size_t at;  // of its arguments in args_
  };
  struct Stretch {
    size_t begin, end;  // of calls_
    Graph graph;        // from its second run on, where it is worth one
  };
  void begin();
  void end(ReplayCounts&);
  void abandon();
  bool holds_back(const Kind&, const void* args);
  void note(const Kind&, const void* args);
  void cut();
  void launch(Stretch&);
  void queue(size_t begin, size_t end) const;
  void leave(std::string why);
  void forget();

  const Backend& inner_;
  const Stream stream_;
  std::vector<Call> calls_;
  std::vector<std::byte> args_;
  std::vector<Stretch> stretches_;
  bool noted_ = false;            // calls_ is complete
  int strikes_ = 0;               // runs that went another way than noted; at kMostStrikes nothing is noted any more
  size_t next_ = 0, queued_ = 0;  // of the running work: calls that came; those that are on the stream
  size_t stretch_ = 0, noted_from_ = 0;
  std::string why_;  // the running work, or all from now on, is queued call by call
};

}  // namespace gt
