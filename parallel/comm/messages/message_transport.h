// Point-to-point messages between rank processes: what a message backend implements (MPI, sockets). Collectives, shared
// memory and deadlines are built on it once (message_group.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "parallel/comm/side_channel.h"

namespace gt {

// Messages among the ranks of one group, apart from those of every other channel.
class MessageChannel {
 public:
  virtual ~MessageChannel() = default;
};

// Messages of one call. Reused by later calls, so that nothing is allocated once warm.
class MessageSet {
 public:
  virtual ~MessageSet() = default;
  virtual void use(MessageChannel&) = 0;  // starts an empty set on that channel
  // Post a message of any size to or from rank `peer` of the channel. Messages of one (source, destination, tag) keep
  // their order. Buffers must stay untouched until test() returned done.
  virtual void send(const std::byte* from, int64_t bytes, int peer, int tag) = 0;
  virtual void receive(std::byte* to, int64_t bytes, int peer, int tag) = 0;
  struct State {
    bool done = false;               // all messages are complete; the set is empty again
    int peer = -1;                   // >= 0: its message had another size; the set is unusable until use()
    int64_t expected = 0, sent = 0;  // sizes of that message; sent < 0: more than expected
  };
  virtual State test() = 0;                                             // throws if the transport failed
  virtual void missing(std::vector<int>& peers, bool sends) const = 0;  // adds peers of incomplete messages
  virtual void abandon() = 0;                                           // after an error
};

// The messages of one rank of a world. Not thread-safe.
class MessageTransport {
 public:
  virtual ~MessageTransport() = default;
  virtual std::string_view name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::vector<int>& local_ranks() const = 0;  // world ranks of this machine, ascending
  virtual int largest_tag() const = 0;
  virtual std::unique_ptr<MessageSet> make_set() = 0;

  struct Channels {
    std::unique_ptr<MessageChannel> collectives, messages;  // nullptr for a group of one rank
  };
  // Collective over the world, like GroupFactory::make.
  virtual Channels split(std::span<const int> world_ranks) = 0;
  // Channel of the ranks of this machine. Collective over the world.
  virtual std::unique_ptr<MessageChannel> split_machine() = 0;

  virtual void open_notes() = 0;
  virtual void leave(int to, const Note&) = 0;
  virtual bool next_note(int& from, Note&) = 0;  // false: none has arrived
  virtual void advance() {}                      // moves whatever can be moved now; called before every round of test()
  // Blocks until something arrives or for at most `us` microseconds.
  virtual void pause(int us) = 0;
  // Ends a pause() of rank `to`, now or the next one. Only where pauses can be ended: can_wake().
  virtual bool can_wake() const { return false; }
  virtual void wake(int /*to*/) {}
  // Ends every rank of the world with this exit code.
  [[noreturn]] virtual void abort(int code) = 0;
};

}  // namespace gt
