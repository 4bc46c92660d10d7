// Messages over connected stream sockets: one socket per peer, frames of a header and a payload, read straight into the
// posted buffer. Ranks connected by Unix sockets pass the payload of large messages in memory (message_ring.h). Private
// to socket_group.cpp.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/core/files.h"
#include "parallel/comm/messages/message_ring.h"
#include "parallel/comm/messages/message_transport.h"
#include "parallel/comm/messages/socket_rendezvous.h"

namespace gt {

struct SocketChannel final : MessageChannel {
  SocketChannel(uint32_t n, std::vector<int> r) : number(n), ranks(std::move(r)) {}
  const uint32_t number;         // > 0; the same on all its ranks
  const std::vector<int> ranks;  // world ranks
};

class SocketTransport;

class SocketSet final : public MessageSet {
 public:
  explicit SocketSet(SocketTransport& transport) : transport_(transport) {}
  ~SocketSet() override { abandon(); }
  void use(MessageChannel&) override;
  void send(const std::byte* from, int64_t bytes, int peer, int tag) override;
  void receive(std::byte* to, int64_t bytes, int peer, int tag) override;
  State test() override;
  void missing(std::vector<int>& peers, bool sends) const override;
  void abandon() override;

 private:
  friend class SocketTransport;
  struct Request {
    int peer;  // in the group
    bool receive, done;
    int64_t bytes, sent;  // expected; of the message that arrived
  };
  void finish(size_t index, int64_t bytes);
  SocketTransport& transport_;
  const SocketChannel* channel_ = nullptr;
  std::vector<Request> requests_;
  size_t left_ = 0;
};

class SocketTransport final : public MessageTransport {
 public:
  // share_memory false: payloads pass through the sockets alone.
  SocketTransport(const SocketJob&, bool share_memory);
  ~SocketTransport() override;
  std::string_view name() const override { return "socket"; }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  const std::vector<int>& local_ranks() const override { return local_ranks_; }
  int largest_tag() const override { return INT32_MAX; }
  std::unique_ptr<MessageSet> make_set() override { return std::make_unique<SocketSet>(*this); }
  Channels split(std::span<const int> ranks) override;
  std::unique_ptr<MessageChannel> split_machine() override;
  void open_notes() override {}
  void leave(int to, const Note&) override;
  bool next_note(int& from, Note&) override;
  void advance() override;
  void pause(int us) override;
  bool can_wake() const override { return true; }
  void wake(int to) override;
  [[noreturn]] void abort(int code) override;

 private:
  friend class SocketSet;
  static constexpr uint64_t kFollows = UINT64_MAX;
  struct Header {
    int64_t bytes = 0;
    uint32_t channel = 0;    // 0: for the transport itself
    int32_t tag = 0;         // or what it is
    uint64_t at = kFollows;  // where the payload is in the sender's ring
    int64_t following() const { return at == kFollows ? bytes : 0; }
  };
  struct Request {  // of a set; set nullptr: nobody waits for it
    SocketSet* set = nullptr;
    size_t index = 0;
  };
  struct Outgoing {
    Header header;
    const std::byte* data = nullptr;
    size_t done = 0;             // bytes of header and data
    std::vector<std::byte> own;  // holds the data if the caller's buffer does not
    Request request;
    Fd descriptor;  // travels with the header
  };
  struct Posted {
    Header header;
    std::byte* to = nullptr;
    Request request;
  };
  struct Arrived {
    Header header;
    std::vector<std::byte> data;
  };
  struct Incoming {
    Header header;
    size_t done = 0;          // bytes of header and data
    std::byte* to = nullptr;  // the posted buffer
    Request request;
    bool matched = false, dropped = false;  // has a receive; its data has nowhere to go
    Fd descriptor;                          // that came with the header
  };
  struct Peer {
    int fd = -1;
    bool writes = false, leaving = false;  // waits until the socket takes more; has announced its end
    bool shares_memory = false;            // of this machine, over a Unix socket
    MessageRing to_peer, from_peer;        // empty until the first large message
    std::string lost;                      // why its connection ended; "": open
    std::vector<Outgoing> out;
    std::vector<Posted> posted;
    std::vector<Arrived> arrived;  // before their receive was posted
    Incoming in;
    std::vector<std::byte> pending;  // data of `in` without a posted receive
  };

  void post_send(int to, Header, const std::byte*, Request);
  void post_control(int to, int32_t what, const void* data, size_t bytes, Fd descriptor = Fd());
  bool put_in_memory(Peer&, int to, Header&, const std::byte*);
  void post_receive(int from, Header, std::byte*, Request);
  void abandon(const SocketSet*);
  void write_some(Peer&);
  void read_some(Peer&, int rank);
  bool read_header(Peer&);
  bool begin_frame(Peer&);  // false: not a frame of ours
  void take_from_memory(Peer&);
  void end_frame(Peer&, int rank);
  bool read_into(Peer&, std::byte*, size_t);
  void lose(Peer&, std::string why);
  void watch(Peer&, bool writes);
  void move();                         // reads and writes what the sockets take
  void require_alive(int rank) const;  // throws RankDied, or kIo for a rank of another machine
  void leave_together();

  const int rank_;
  const bool reports_abort_;
  const int unwinding_;
  std::vector<int> local_ranks_;
  std::vector<Peer> peers_;  // by world rank
  int events_ = -1;          // epoll
  uint32_t channels_ = 0;
  bool lost_ = false;  // a connection has ended
  std::vector<std::pair<int, Note>> notes_;
  std::vector<std::vector<std::byte>> spare_;  // buffers of messages that arrived early
};

}  // namespace gt
