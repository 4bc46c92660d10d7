// Happens-before order of work items: vector clocks of streams, events and host threads. Synchronization between host
// threads is not tracked, so an order that relies on it must also be established by events.
#pragma once
#include <cstdint>
#include <vector>

namespace gt::emulated {

// A stream (8 bits) and its work item number (24 bits); 0: none.
using When = uint32_t;
constexpr uint32_t stream_of(When w) { return w >> 24; }
constexpr uint32_t number_of(When w) { return w & 0xFFFFFF; }

using Clock = std::vector<uint32_t>;  // per stream: number of finished work items

// A work item: a kernel, copy or GEMM on a stream.
struct WorkItem {
  When when = 0;
  Clock behind;  // work finished when it begins, itself included
  // Whether work item `w` happens before this one.
  bool after(When w) const { return stream_of(w) < behind.size() && behind[stream_of(w)] >= number_of(w); }
};

// The work item of the calling thread.
const WorkItem& current_work_item();

// Whether the race detector ignores this synchronization, so that a test can verify that the missing order is detected.
// Set by GPTTRAIN_EMULATED_IGNORES=KIND (all of them) or KIND:N (the N-th alone): a stream's wait for an event
// (`streams`), a barrier of a block (`blocks`) or of a warp (`warps`).
bool ignores(const char* kind);

}  // namespace gt::emulated
