// What a backend for device memory needs from the host's transport beyond its groups: small notes that nobody waits
// for, news of a failure, a place on the board. The thread and MPI factories have one.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/core/device.h"
#include "parallel/comm/group_trace.h"
#include "parallel/comm/process_group.h"

namespace gt {

// Notes between two ranks are told apart by group (its make() call) and tag.
struct Note {
  uint64_t group = 0, tag = 0;
  std::array<char, 128> text{};
};

class SideChannel {
 public:
  virtual ~SideChannel() = default;
  // Collective over the world, once, before the first note.
  virtual void open_notes() = 0;
  // Leaves a note for a rank of the world; returns at once. Notes of one (group, tag) between two ranks keep their
  // order.
  virtual void leave(int to, const Note&) = 0;
  // Whether the note of (note.group, note.tag) from that rank has come; it is then in note.text, and gone from here.
  virtual bool take(int from, Note& note) = 0;
  // Whether another rank has ended the world: any thread may ask. check() then throws what it said.
  virtual bool world_failed() const = 0;
  virtual void check() = 0;
  // This rank's place on the board for a group, as GroupTrace's constructor takes it.
  virtual GroupTrace trace(uint64_t number, int leader, int rank, int size) = 0;
  // Groups of the same ranks for tensors on a device that all of them share, with nothing between: of at most
  // Combine::kMost ranks, of a device that combines. Outlived by this object and `api`. nullptr: ranks of this transport
  // do not reach each other's tensors.
  virtual std::unique_ptr<GroupFactory> direct(const DeviceApi& api, int index) {
    (void)api;
    (void)index;
    return nullptr;
  }
};

}  // namespace gt
