// Services of the host's transport, besides its groups, for backends of device memory: small asynchronous messages,
// failure notification, slots on the board. Implemented by the thread and MPI factories.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/core/device.h"
#include "parallel/comm/group_trace.h"
#include "parallel/comm/process_group.h"

namespace gt {

// Notes between two ranks are matched by group (its make() call) and tag.
struct Note {
  uint64_t group = 0, tag = 0;
  std::array<char, 128> text{};
};

class SideChannel {
 public:
  virtual ~SideChannel() = default;
  // Collective over the world, once, before the first note.
  virtual void open_notes() = 0;
  // Sends a note to a world rank; returns at once. Notes with the same (group, tag) between two ranks keep their order.
  virtual void leave(int to, const Note&) = 0;
  // Returns true if a note with (note.group, note.tag) from that rank has arrived, and moves it into note.text.
  virtual bool take(int from, Note& note) = 0;
  // Whether another rank has ended the world; thread-safe. check() then throws its message.
  virtual bool world_failed() const = 0;
  virtual void check() = 0;
  // This rank's board slot for a group; parameters as in GroupTrace's constructor.
  virtual GroupTrace trace(uint64_t number, int leader, int rank, int size) = 0;
  // Groups of the same ranks for tensors on a device that all of them share, without staging. At most Combine::kMost
  // ranks, on a device that implements combine. This object and `api` must outlive them. nullptr: ranks of this
  // transport cannot access each other's tensors.
  virtual std::unique_ptr<GroupFactory> direct(const DeviceApi& api, int index) {
    (void)api;
    (void)index;
    return nullptr;
  }
};

}  // namespace gt
