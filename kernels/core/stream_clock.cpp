#include "kernels/core/stream_clock.h"

#include "kernels/core/check.h"
#include "kernels/core/host.h"

namespace gt {

StreamClock::StreamClock(const DeviceApi& api, Stream stream) : api_(api), stream_(stream) {}

StreamClock::~StreamClock() {
  for (const Event e : events_) api_.destroy_event(e);
}

size_t StreamClock::mark() {
  if (asynchronous()) {
    if (count_ == events_.size()) events_.push_back(api_.make_timer(stream_.device.index));
    api_.record(events_[count_], stream_);
  } else {
    if (count_ == times_.size()) times_.push_back(0);
    times_[count_] = now();
  }
  return count_++;
}

void StreamClock::anchor(size_t mark, double seconds) {
  GT_CHECK(mark < count_, "mark ", mark, " of ", count_);
  if (asynchronous()) origin_ = seconds - api_.seconds_between(events_.front(), events_[mark]);
}

void StreamClock::anchor(const StreamClock& to) {
  GT_CHECK(asynchronous() == to.asynchronous() && to.count_ > 0 && count_ > 0,
           "clocks of different devices, or without marks");
  if (asynchronous()) origin_ = to.origin_ + api_.seconds_between(to.events_.front(), events_.front());
}

double StreamClock::at(size_t mark) const {
  GT_CHECK(mark < count_, "mark ", mark, " of ", count_);
  return asynchronous() ? origin_ + api_.seconds_between(events_.front(), events_[mark]) : times_[mark];
}

}  // namespace gt
