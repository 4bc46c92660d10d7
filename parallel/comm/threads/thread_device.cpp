#include "parallel/comm/threads/thread_device.h"

#include "parallel/comm/threads/thread_state.h"

namespace gt {
namespace {

// The same elements of all ranks' tensors, in rank order.
Combine of_parts(const ThreadCollective& c, int64_t first_byte, int64_t count) {
  Combine call{.parts = static_cast<int>(c.a.size()), .count = count, .dtype = c.call.dtype, .op = c.call.reduce};
  for (size_t r = 0; r < c.a.size(); ++r) call.from[r] = c.a[r].data + first_byte;
  return call;
}

// Copies one rank's elements to all others.
Combine spread(const std::byte* from, const std::vector<Tensor>& to, int64_t first_byte, int64_t bytes) {
  Combine call{.parts = 1, .count = bytes, .dtype = DType::kByte};
  call.from[0] = from;
  for (const Tensor& t : to)
    if (t.data + first_byte != from) call.to[call.targets++] = t.data + first_byte;
  return call;
}

void make_result(const DeviceApi& api, Stream lane, const ThreadCollective& c, int size) {
  const int64_t part = c.call.count / size, part_bytes = part * size_of(c.call.dtype);
  switch (c.call.op) {
    case CommOp::kAllReduce: {
      Combine call = of_parts(c, 0, c.call.count);
      for (const Tensor& t : c.a) call.to[call.targets++] = t.data;
      return api.combine(call, lane);
    }
    case CommOp::kReduceScatter:
      for (int r = 0; r < size; ++r) {
        Combine call = of_parts(c, r * part_bytes, part);
        call.targets = 1, call.to[0] = c.b[static_cast<size_t>(r)].data;
        api.combine(call, lane);
      }
      return;
    case CommOp::kAllGather:
      for (int r = 0; r < size; ++r)
        api.combine(spread(c.b[static_cast<size_t>(r)].data, c.a, r * part_bytes, part_bytes), lane);
      return;
    case CommOp::kBroadcast:
      return api.combine(spread(c.a[static_cast<size_t>(c.call.peer)].data, c.a, 0, c.call.bytes()), lane);
    case CommOp::kAllToAll:
    case CommOp::kAllToAllV:
      for (int k = 0; k < size * size; ++k)
        if (const ThreadPart p = part_of(c, k / size, k % size); p.bytes > 0) api.copy(p.to, p.from, p.bytes, lane);
      return;
    default: break;
  }
}

}  // namespace

DeviceLane::~DeviceLane() {
  if (api_ == nullptr) return;
  try {
    api_->close_stream(stream_);
  } catch (const std::exception&) {  // the device is gone
  }
}

Stream DeviceLane::stream(const SharedDevice& d) {
  if (api_ == nullptr) stream_ = d.api->open_stream(d.index, 1), api_ = d.api;
  return stream_;
}

EventPool::~EventPool() {
  for (Event e : all_) device_.api->destroy_event(e);
}

Event EventPool::mark(Stream after) {
  if (after.native == nullptr) return nullptr;
  if (spare_.empty()) {
    all_.push_back(device_.api->create_event(device_.index));
    spare_.reserve(all_.size());
    spare_.push_back(all_.back());
  }
  const Event e = spare_.back();
  device_.api->record(e, after);
  spare_.pop_back();
  return e;
}

void EventPool::give(Event e) {
  if (e != nullptr) spare_.push_back(e);
}

void queue_collective(const SharedDevice& d, Stream lane, ThreadCollective& c, int size) {
  if (c.done == nullptr) c.done = d.api->create_event(d.index);
  for (Event ready : c.ready)
    if (ready != nullptr) d.api->wait(ready, lane);
  make_result(*d.api, lane, c, size);
  d.api->record(c.done, lane);
}

}  // namespace gt
