// Calls of one rank in its process groups, in order: those that the static proof of a layout derives (prove_layout.h),
// and those that a run makes.
#pragma once
#include <cstdint>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include "parallel/mesh.h"

namespace gt {

struct GroupCall {
  std::string group;  // of Mesh::groups(): "dp_cp"
  CommOp op = CommOp::kBarrier;
  int64_t bytes = 0;  // of the full tensor; unequal all-to-alls: 0, the router decides
  friend bool operator==(const GroupCall&, const GroupCall&) = default;
};

// Records the calls in the groups of a mesh, those of one rank and of empty tensors aside, while it lives.
class CallRecorder {
 public:
  explicit CallRecorder(const Mesh&);
  ~CallRecorder();
  CallRecorder(const CallRecorder&) = delete;
  CallRecorder& operator=(const CallRecorder&) = delete;
  std::vector<GroupCall> take();  // since the last take()

 private:
  std::list<CommSpans> spans_;
  std::vector<std::pair<Mesh::Named, CommSpans*>> groups_;
};

// "call 17 of 40: expected all_reduce of 512 bytes over tp, found none"; "" if there is no difference.
std::string first_difference(const std::vector<GroupCall>& expected, const std::vector<GroupCall>& found);

}  // namespace gt
