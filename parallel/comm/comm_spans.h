// Times that one rank's thread spent in each call and wait of a group; CommCounters::Op::blocked_ns is their sum.
// Recorded while a step is traced, into preallocated memory.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace gt {

enum class CommOp : uint8_t;

struct CommSpan {
  int64_t begin = 0, end = 0;  // steady_ns
  int64_t bytes = 0;           // of the call's full tensor
  CommOp op{};
  bool waits = false;  // a wait for an earlier call
};

class CommSpans {
 public:
  explicit CommSpans(size_t capacity) { spans_.reserve(capacity); }
  void add(const CommSpan& s) {
    if (spans_.size() < spans_.capacity())
      spans_.push_back(s);
    else
      full_ = true;
  }
  std::span<const CommSpan> spans() const { return spans_; }
  bool full() const { return full_; }  // some spans did not fit and were dropped
  void clear() {
    spans_.clear();
    full_ = false;
  }

 private:
  std::vector<CommSpan> spans_;
  bool full_ = false;
};

}  // namespace gt
