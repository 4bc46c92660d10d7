// Connects the ranks of a job that was started by variables alone (torchrun's): every rank to every other one.
#pragma once
#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace gt {

struct SocketJob {
  int rank = 0, world = 1, local_rank = 0, local_world = 1;  // local ranks of a machine are consecutive ranks
  std::string host = {};                                     // of rank 0 (MASTER_ADDR)
  int port = 0, ports = 1;   // rank 0 listens at the first free one of `ports` ports from `port` on
  std::string id = {};       // of the job and its attempt; ranks of another one are refused
  std::string secret = {};   // known to the ranks only; required if they are on several machines, see below
  std::string address = {};  // of this machine, to listen at and connect from; "": the one that reaches rank 0
  std::chrono::milliseconds limit = std::chrono::minutes(10);
  bool reports_abort = false;          // print a line when another rank ends this one: no parent of both reports why
  std::function<bool()> stopped = {};  // polled; once true, ranks that are missing get three more seconds
};

// Returns a connected, non-blocking stream socket per rank; -1 for this rank.
// On one machine: Unix sockets in the abstract namespace; peers of another user are refused by the kernel's
// credentials, no port is opened. On several machines: TCP. Rank 0 listens at host:port; the others send it the
// addresses at which they listen. If `host` is "localhost" or a numeric loopback address, it listens there only;
// otherwise the secret needs 16 characters, not digits alone. Both sides prove the secret before any other byte of the
// peer is parsed. Listeners are closed at the end. Throws kUsage (port in use, another secret or world size, name not
// found) or kIo, naming ranks that did not connect in time; kInterrupted once stopped. Collective.
std::vector<int> connect_ranks(const SocketJob&);

}  // namespace gt
