// Counts what the calling thread takes from the heap while one of these lives. Under a sanitizer, which brings its own
// allocator, nothing is counted.
#pragma once
#include <cstdint>

namespace gt {

class CountAllocations {
 public:
  CountAllocations();
  ~CountAllocations();
  // Ends the count. The one allocation that shows that the counter counts is not in it, and missing it is an error.
  int64_t stop();
};

}  // namespace gt
