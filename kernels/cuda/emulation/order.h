// Which pieces of work are ordered behind which: vector clocks of streams, events and threads of the host. A thread's
// clock knows what it waited for itself; what other threads waited for and told it is not seen, so such an order has to
// be one of events.
#pragma once
#include <cstdint>
#include <vector>

namespace gt::emulated {

// A stream (8 bits) and the number of its piece (24 bits); 0: none.
using When = uint32_t;
constexpr uint32_t stream_of(When w) { return w >> 24; }
constexpr uint32_t number_of(When w) { return w & 0xFFFFFF; }

using Clock = std::vector<uint32_t>;  // by stream: how many of its pieces are over

struct Piece {
  When when = 0;
  Clock behind;  // what is over when it begins, itself counted
  bool after(When w) const { return stream_of(w) < behind.size() && behind[stream_of(w)] >= number_of(w); }
};

// Of the calling thread.
const Piece& current_piece();

// Whether the watch is to overlook this one, so that a test sees a race where an order is missing: a wait of a stream
// for an event (`streams`), a barrier of a block (`blocks`) or of a warp (`warps`), by GPTTRAIN_EMULATED_FORGETS=KIND,
// all of them, or KIND:N, the N-th alone.
bool forgets(const char* kind);

}  // namespace gt::emulated
