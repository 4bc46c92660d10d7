// Shared memory that killed ranks leave behind.
#pragma once

namespace gt {

// The destructor removes this user's segments and shard skeletons in /dev/shm whose owners have ended: ranks killed
// between creating and unlinking them. Files whose owner may live are left, whatever container it lives in
// (kernels/core/owned_file.h).
class StraySegments {
 public:
  StraySegments() = default;
  ~StraySegments();
  StraySegments(const StraySegments&) = delete;
  StraySegments& operator=(const StraySegments&) = delete;
};

}  // namespace gt
