// Shared memory that killed ranks leave behind.
#pragma once
#include <ctime>

namespace gt {

// The destructor removes this user's segments and shard skeletons in /dev/shm that were created during the object's
// life by processes that are dead by then: ranks killed between creating and unlinking them.
class StraySegments {
 public:
  StraySegments() = default;
  ~StraySegments();
  StraySegments(const StraySegments&) = delete;
  StraySegments& operator=(const StraySegments&) = delete;

 private:
  const time_t begun_ = std::time(nullptr);
};

}  // namespace gt
