// TCP between the stall monitors of a job's machines: the process of rank 0 has the hub, one process of each other
// machine a link to it. Reports go to the hub twice a second, an answer to each comes back, and the end of the run goes
// to all. Who does not know the job's secret is dropped before a byte of his is read as anything else. Nothing here
// blocks, throws at run time, or is thread-safe: a monitor's thread calls it.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/node_report.h"

namespace gt {

// One end of a connection: bytes in and out, cut into frames of a length and a text.
class FrameSocket {
 public:
  explicit FrameSocket(int fd) : fd_(fd) {}
  ~FrameSocket();
  FrameSocket(const FrameSocket&) = delete;
  FrameSocket& operator=(const FrameSocket&) = delete;
  bool open() const { return fd_ >= 0; }
  void close();
  void send(std::string_view frame);       // closes when the other side has not read for a while
  void pump();                             // sends and receives what it can
  bool take(size_t most, std::string& frame);  // the next frame; closes when one is larger

 private:
  int fd_;
  std::string in_, out_;
};

class NodeHub {
 public:
  // Listens on every address of this machine that others may reach; `only`: on this interface or address. address() is
  // "" where it can listen nowhere.
  explicit NodeHub(std::string secret, const std::string& only = "");
  ~NodeHub();
  NodeHub(const NodeHub&) = delete;
  NodeHub& operator=(const NodeHub&) = delete;
  const std::string& address() const { return address_; }  // "10.0.0.1 4711 10.1.0.1 4712"

  struct Node {
    NodeReport report;    // the last one
    int64_t heard = 0;    // when, steady_ns
    int64_t closed = 0;   // since when no connection of it is open; 0: one is
  };
  void poll(int64_t now);
  const std::map<int, Node>& nodes() const { return nodes_; }  // by the least rank of the machine
  void end(const std::string& text);                           // of the run, for all nodes

 private:
  struct Peer {
    std::unique_ptr<FrameSocket> socket;
    int64_t since = 0;   // it was accepted
    std::string answer;  // that it must give first; "": it has
    int node = -1;
  };
  void accept_all(int64_t now);
  void listen_to(Peer&, int64_t now);
  std::string secret_, address_;
  std::vector<int> listeners_;
  std::vector<Peer> peers_;
  std::map<int, Node> nodes_;
};

class NodeLink {
 public:
  // `address`: the hub's. Connects at the first report.
  NodeLink(const std::string& address, std::string secret);
  void report(const NodeReport&, int64_t now);
  void poll(int64_t now);
  int64_t heard() const { return heard_; }            // last answer, steady_ns; 0: none yet
  bool ended() const { return !ended_.empty(); }      // the run, as the hub says
  bool done() const { return done_; }                 // the hub's process has ended well

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
  std::string awaited_;  // the hub's answer
  bool trusted_ = false, done_ = false;
  int64_t begun_ = 0, heard_ = 0;
};

// 32 random hexadecimal digits.
std::string random_word();

}  // namespace gt
