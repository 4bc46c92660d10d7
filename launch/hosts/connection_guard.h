// Blocks connections from hosts outside the job to the TCP ports of its ranks. Open MPI does not authenticate peers and
// reads the first bytes of a new connection with a blocking call. A port scan that sends 18 bytes would stall a rank.
#pragma once
#include <linux/filter.h>
#include <sys/types.h>

#include <condition_variable>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace gt {

// IPv4 or IPv6 address as 4 or 16 bytes in network byte order.
using AddressBytes = std::string;
using AddressSet = std::set<AddressBytes>;

// Returns the addresses of all interfaces of this host that are up, including loopback and link-local ones.
AddressSet own_addresses();

// Returns a socket filter (classic BPF) that drops connection requests (SYN) from all other addresses. Packets of
// established connections pass. Exact for up to 128 IPv4 and 64 IPv6 addresses; larger sets are widened to common
// prefixes.
std::vector<sock_filter> admitting_filter(const AddressSet&);

// Closes connections to the TCP listeners of `process` (this one or a child) that have been silent for two seconds
// without completing Open MPI's handshake.
void close_silent_connections(pid_t process);

// Guards the TCP sockets of this process from a thread of its own, and those of its parent Open MPI daemon if
// permitted. Before admit() it closes silent connections. After admit() the kernel drops requests from other hosts, and
// connections that those hosts had already made to this process are closed.
class ConnectionGuard {
 public:
  ConnectionGuard();
  ~ConnectionGuard();
  ConnectionGuard(const ConnectionGuard&) = delete;
  ConnectionGuard& operator=(const ConnectionGuard&) = delete;
  void admit(const AddressSet&);

 private:
  void check_listeners();
  const pid_t daemon_;  // 0: none
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  AddressSet admitted_;
  std::vector<sock_filter> filter_;
  std::set<ino_t> filtered_;
  std::thread thread_;
};

}  // namespace gt
