// TCP between the stall monitors of a job's machines: rank 0's process runs the hub, processes of the other machines
// have links to it, one of which per machine is in use. Reports go to the hub twice a second and are answered; the end
// of the run is broadcast to all. Peers that fail the job's secret are dropped before any other byte of theirs is
// parsed. Never blocks, never throws at run time, not thread-safe: called on a monitor's thread.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/watch/node_report.h"

namespace gt {

// One end of a connection: byte streams in and out, split into frames of a length and a text.
class FrameSocket {
 public:
  explicit FrameSocket(int fd) : fd_(fd) {}
  ~FrameSocket();
  FrameSocket(const FrameSocket&) = delete;
  FrameSocket& operator=(const FrameSocket&) = delete;
  bool open() const { return fd_ >= 0; }
  void close();
  void send(std::string_view frame);           // closes if the peer has not read for a while
  void pump();                                 // sends and receives without blocking
  bool take(size_t most, std::string& frame);  // returns the next frame; closes if one is larger than `most`
  // Seconds without a packet from the peer's kernel while it owes an acknowledgment; 0: it owes none. A busy or stopped
  // process does not delay acknowledgments: its machine or network does.
  double unacknowledged_s() const;

 private:
  int fd_;
  std::string in_, out_;
};

class NodeHub {
 public:
  // Listens on every address of this machine that others may reach; `only`: on this interface or address. address() is
  // "" if it cannot listen anywhere.
  explicit NodeHub(std::string secret, const std::string& only = "");
  ~NodeHub();
  NodeHub(const NodeHub&) = delete;
  NodeHub& operator=(const NodeHub&) = delete;
  const std::string& address() const { return address_; }  // "10.0.0.1 4711 10.1.0.1 4712"

  struct Node {
    NodeReport report;         // the latest
    int64_t heard = 0;         // when it arrived, steady_ns
    int64_t closed = 0;        // since when it has had no open connection; 0: it has one
    double unreachable_s = 0;  // FrameSocket::unacknowledged_s() of its connection
  };
  void poll(int64_t now);
  const std::map<int, Node>& nodes() const { return nodes_; }  // keyed by the lowest rank of the machine
  void end(const std::string& text);                           // ends the run on all nodes

 private:
  struct Peer {
    std::unique_ptr<FrameSocket> socket;
    int64_t since = 0;     // when it was accepted
    std::string answer;    // the answer it must give first; "": authenticated
    int node = -1;         // key in nodes_; -1: no report yet
    int64_t prompted = 0;  // when a silent peer was last sent something to acknowledge
  };
  void accept_all(int64_t now);
  void receive_from(Peer&, int64_t now);
  void prompt_if_silent(Peer&, int64_t now);
  std::string secret_, address_;
  std::vector<int> listeners_;
  std::vector<Peer> peers_;
  std::map<int, Node> nodes_;
};

class NodeLink {
 public:
  // `address`: the hub's. Connects on the first report.
  NodeLink(const std::string& address, std::string secret);
  void report(const NodeReport&, int64_t now);
  void poll(int64_t now);
  int64_t heard() const { return heard_; }  // last answer, steady_ns; 0: none yet
  double unreachable_s() const { return socket_ && trusted_ ? socket_->unacknowledged_s() : 0; }  // the hub's machine
  bool ended() const { return !ended_.empty(); }  // the hub has ended the run
  bool done() const { return done_; }             // the hub's process has ended normally

 private:
  void connect(int64_t now);
  struct Address {
    std::string ip;
    int port = 0;
  };
  std::vector<Address> addresses_;
  size_t next_ = 0;
  std::string secret_, ended_;
  std::unique_ptr<FrameSocket> socket_;
  std::string awaited_;  // the hub's expected answer
  bool trusted_ = false, done_ = false;
  int64_t begun_ = 0, heard_ = 0;
};

// 32 random hexadecimal digits.
std::string random_word();

}  // namespace gt
