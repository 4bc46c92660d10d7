// Keeps hosts that are not of the job away from the TCP ports of its ranks. Open MPI authenticates nobody and reads the
// first bytes of a new connection with a call that blocks: 18 bytes of a port scan would stall a rank.
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

// An IPv4 or IPv6 address as 4 or 16 bytes in network order.
using AddressBytes = std::string;
using AddressSet = std::set<AddressBytes>;

// Addresses of all interfaces of this host that are up, loopback and link-local ones too.
AddressSet own_addresses();

// A socket filter (classic BPF) that drops connection requests from other addresses than these; packets of connections
// that exist pass. Exact up to 128 IPv4 and 64 IPv6 addresses, beyond that by common prefixes.
std::vector<sock_filter> admitting_filter(const AddressSet&);

// Makes the TCP listeners of a child process that are not bound to the loopback device drop every packet. Returns how
// many; 0 where the system does not let us (pidfd_getfd, Linux 5.6).
int close_listeners(pid_t child);

// Closes connections to the TCP listeners of a process, this one or a child, whose peer has been silent for two seconds
// before a whole handshake of Open MPI had come.
void close_silent_connections(pid_t process);

// Watches the TCP sockets of this process, and of the daemon of Open MPI that started it as far as the system lets us,
// from a thread of its own. Until the hosts of the job are known it closes silent connections. After admit(), requests
// of other hosts are dropped by the kernel, and connections that they made to this process earlier are closed.
class ConnectionGuard {
 public:
  ConnectionGuard();
  ~ConnectionGuard();
  ConnectionGuard(const ConnectionGuard&) = delete;
  ConnectionGuard& operator=(const ConnectionGuard&) = delete;
  void admit(const AddressSet&);

 private:
  void look();
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
