// Traces in the event format of chrome://tracing and ui.perfetto.dev: a process a rank, a thread a kind of work, a
// slice an entry, an arrow a message between pipeline ranks. Knows entries, nothing of how they were gathered.
#pragma once
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "launch/observe/trace/trace.h"

namespace gt {

struct TraceInfo {
  // Key and value of "otherData": what ran, and how far the clocks may be off.
  std::vector<std::pair<std::string, std::string>> other;
  int64_t tokens = 0;               // of a microbatch
  std::vector<double> stage_flops;  // forward, a microbatch, by virtual stage; empty: not known
};

// Thread numbers of a trace.
enum class Track : int { kCompute = 0, kTp, kSend, kRecv, kDp, kCopy, kLoader, kHost };

// One JSON object, {"displayTimeUnit", "otherData", "traceEvents"}. Times in microseconds since the first entry; slices
// of one thread do not overlap and stand in order of time. An arrow is drawn where both of its ends were traced.
std::string trace_json(std::span<const RankTrace>, const TraceInfo&);

// Writes `json` gzip-packed. Throws kIo naming the path.
void write_gzip(const std::string& path, const std::string& json);

}  // namespace gt
