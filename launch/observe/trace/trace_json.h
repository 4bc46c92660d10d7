// Traces in the event format of chrome://tracing and ui.perfetto.dev: a process per rank, a thread per kind of work, a
// slice per entry, an arrow per message between pipeline ranks.
#pragma once
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "launch/observe/trace/trace.h"

namespace gt {

struct TraceInfo {
  // Entries of "otherData": what ran, and the clock error.
  std::vector<std::pair<std::string, std::string>> other;
  int64_t tokens = 0;               // per microbatch
  std::vector<double> stage_flops;  // forward FLOPs per microbatch by virtual stage; empty: unknown
};

// Thread ids of a trace.
enum class Track : int { kCompute = 0, kTp, kSend, kRecv, kDp, kCopy, kLoader, kHost };

// Returns one JSON object, {"displayTimeUnit", "otherData", "traceEvents"}. Times in microseconds since the first
// entry; slices of one thread do not overlap and are in time order. Arrows need both ends traced.
std::string trace_json(std::span<const RankTrace>, const TraceInfo&);

// Writes `json` compressed with gzip. Throws kIo naming the path.
void write_gzip(const std::string& path, const std::string& json);

}  // namespace gt
