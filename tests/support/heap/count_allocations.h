// Counts heap allocations of the calling thread during the object's lifetime. Disabled under sanitizers, which bring
// their own allocator.
#pragma once
#include <cstdint>

namespace gt {

class CountAllocations {
 public:
  CountAllocations();
  ~CountAllocations();
  // Ends the count and returns it. Excludes the one allocation that verifies the counter; fails if that one was not
  // counted.
  int64_t stop();
};

}  // namespace gt
