// Observations and controls of the fake libnccl, for tests; its symbol: extern "C" FakeNccl* fake_nccl_control().
#pragma once
#include <atomic>
#include <cstdint>

struct FakeNccl {
  int64_t calls = 0;         // collectives and messages so far, of all ranks
  int64_t fail_at = -1;      // the call of this number fails on its rank
  int64_t comms = 0;         // live communicators
  int64_t narrow_comms = 0;  // made with at most 4 thread blocks
  int64_t aborted = 0;
  bool refuse_init = false;
  // Launch time of a call, and number of calls made before the thread's previous one was launched.
  std::atomic<int64_t> launch_us{0}, races{0};
  // Communicators whose kernels were signalled to end; whether all communicators have calls in live graphs.
  std::atomic<int64_t> signalled{0};
  std::atomic<bool> graphs_live{false};
};
