// Private to the thread backend: calls whose tensors are on a GPU that all ranks of the group share. Nothing is copied
// to the host and no host thread waits for the device: each rank leaves an event of its stream with its call, the rank
// that comes last queues the whole call behind these events on a stream of the group, and whoever waits for the call
// has its own stream wait for the event at its end. Sums are made by the device in rank order (DeviceApi::combine), so
// they have the bits of the host's. Streams and events alone order the work, each behind what was queued before: no
// rank's kernel ever waits inside for another rank's.
#pragma once
#include <vector>

#include "kernels/core/device.h"

namespace gt {

struct ThreadCollective;

// The device that the ranks of a world share.
struct SharedDevice {
  const DeviceApi* api = nullptr;  // nullptr: this world's tensors are in host memory
  int index = 0;
};

// A stream of the group's own, opened where it is first needed. Used under the group's mutex.
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

// Events of one rank: of its calls that are under way, and spare ones.
class EventPool {
 public:
  explicit EventPool(const SharedDevice& d) : device_(d) {}
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;
  ~EventPool();
  Event mark(Stream after);  // recorded behind what is queued there; nullptr: there is nothing
  void give(Event);          // back, once what waits for it has been queued

 private:
  const SharedDevice device_;
  std::vector<Event> all_, spare_;
};

// Queues a collective that all ranks have posted, behind their events; its end is `c.done`.
void queue_collective(const SharedDevice&, Stream lane, ThreadCollective& c, int size);

}  // namespace gt
