// Private to the thread backend: calls whose tensors are on a GPU shared by all ranks of the group. Nothing is copied
// to the host and no host thread waits for the device. Each rank records an event of its stream with its call. The last
// rank to arrive queues the whole call behind these events on a stream of the group. Each waiter's stream waits for the
// event at its end. The device sums in rank order (DeviceApi::combine), bitwise identical to the host. Only streams and
// events order the work, each behind earlier work: no rank's kernel ever blocks on another rank's.
#pragma once
#include <vector>

#include "kernels/core/device.h"

namespace gt {

struct ThreadCollective;

// The device shared by the ranks of a world.
struct SharedDevice {
  const DeviceApi* api = nullptr;  // nullptr: this world's tensors are in host memory
  int index = 0;
};

// A stream of the group, created on first use. Guarded by the group's mutex.
class DeviceLane {
 public:
  DeviceLane() = default;
  DeviceLane(const DeviceLane&) = delete;
  DeviceLane& operator=(const DeviceLane&) = delete;
  ~DeviceLane();
  Stream stream(const SharedDevice&);

 private:
  const DeviceApi* api_ = nullptr;
  Stream stream_;
};

// Events of one rank: those of its outstanding calls, and spare ones.
class EventPool {
 public:
  explicit EventPool(const SharedDevice& d) : device_(d) {}
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;
  ~EventPool();
  Event mark(Stream after);  // records an event behind the work queued on `after`; nullptr: not a device stream
  void give(Event);          // returns an event to the pool; call after every wait for it has been queued

 private:
  const SharedDevice device_;
  std::vector<Event> all_, spare_;
};

// Queues a collective that all ranks have posted, behind their events; `c.done` is the event at its end.
void queue_collective(const SharedDevice&, Stream lane, ThreadCollective& c, int size);

}  // namespace gt
