// Private to the NCCL backend: tickets of calls that a recording holds back, and the form in which it stores them. They
// are distinct from the tickets that count calls.
#pragma once
#include "kernels/replay.h"
#include "parallel/comm/call.h"

namespace gt {

struct NcclLane;

constexpr uint64_t kHeldTicket = uint64_t{1} << 63;
constexpr int kNumberBits = 24;

inline uint64_t held_ticket(const Recording::Answer& at) {
  GT_CHECK(at.number < size_t{1} << kNumberBits, "a recording of ", at.number, " calls");
  return kHeldTicket | at.run << kNumberBits | at.number;
}
inline bool is_held(uint64_t ticket) { return (ticket & kHeldTicket) != 0; }
inline uint64_t run_of(uint64_t ticket) { return (ticket & ~kHeldTicket) >> kNumberBits; }
inline size_t number_of(uint64_t ticket) { return ticket & ((uint64_t{1} << kNumberBits) - 1); }

SideCall kept(SideCalls&, NcclLane&, const CommCall&, std::byte* a, std::byte* b);
SideCall recorded_wait(SideCalls&, size_t number);  // for call `number` of the recording

}  // namespace gt
