// IP addresses of sockets.
#pragma once
#include <sys/socket.h>

#include <string>
#include <vector>

namespace gt {

// The port has no portable common offset in the address families, hence two cases.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  bool parse(const std::string& ip, int port);  // numeric IPv4 or IPv6
  std::string ip() const;
  int port() const;
  bool is_loopback() const;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

// Returns the addresses of the interfaces that are up, without loopback and link-local ones; `only`: an interface or an
// address, of any kind.
std::vector<std::string> interface_addresses(const std::string& only);

// Whether a host's text means the loopback interface on every machine: a numeric loopback address, or "localhost".
bool is_loopback_name(const std::string& host);

// Resolves a name or a numeric address, IPv4 first; empty if that fails.
std::vector<SocketAddress> resolve(const std::string& host, int port);

}  // namespace gt
