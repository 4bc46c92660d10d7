// Rank ports on several hosts: the kernel admits connections by the addresses of the job's hosts.
#include "launch/hosts/connection_guard.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kernels/core/check.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) { REQUIRE(fd >= 0); }
  ~Socket() { close(fd_); }
  Socket(Socket&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  int get() const { return fd_; }
  bool readable(int ms) const {
    pollfd p{fd_, POLLIN, 0};
    return poll(&p, 1, ms) == 1;
  }

 private:
  int fd_;
};

AddressBytes bytes_of(const char* text) {
  char out[16];
  if (inet_pton(AF_INET, text, out) == 1) return AddressBytes(out, 4);
  REQUIRE(inet_pton(AF_INET6, text, out) == 1);
  return AddressBytes(out, 16);
}

// Also accepts IPv4 connections.
Socket listener(int& port) {
  Socket s(socket(AF_INET6, SOCK_STREAM, 0));
  const int off = 0;
  setsockopt(s.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  sockaddr_in6 at{};
  at.sin6_family = AF_INET6;
  socklen_t size = sizeof at;
  REQUIRE(bind(s.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0);
  REQUIRE(listen(s.get(), 16) == 0);
  REQUIRE(getsockname(s.get(), reinterpret_cast<sockaddr*>(&at), &size) == 0);
  port = ntohs(at.sin6_port);
  return s;
}

// Connects from a loopback address to itself or, in IPv4, to 127.0.0.1.
Socket connection(const char* from, int port, bool& connected, int wait_ms = 10000) {
  const bool v4 = bytes_of(from).size() == 4;
  Socket s(socket(v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, 0));
  sockaddr_in a4{};
  sockaddr_in6 a6{};
  a4.sin_family = AF_INET, a6.sin6_family = AF_INET6;
  inet_pton(AF_INET, from, &a4.sin_addr);
  inet_pton(AF_INET6, from, &a6.sin6_addr);
  const auto* at = v4 ? reinterpret_cast<const sockaddr*>(&a4) : reinterpret_cast<const sockaddr*>(&a6);
  const socklen_t size = v4 ? sizeof a4 : sizeof a6;
  REQUIRE(bind(s.get(), at, size) == 0);
  if (v4) inet_pton(AF_INET, "127.0.0.1", &a4.sin_addr);
  a4.sin_port = a6.sin6_port = htons(static_cast<uint16_t>(port));
  connect(s.get(), at, size);
  pollfd p{s.get(), POLLOUT, 0};
  connected = poll(&p, 1, wait_ms) == 1 && (p.revents & (POLLERR | POLLHUP)) == 0;
  return s;
}

}  // namespace

TEST_CASE("a listener accepts connections of the job's hosts and drops all others, IPv4 and IPv6") {
  int port = 0;
  const Socket ours = listener(port);
  bool connected = false;
  const Socket before = connection("127.0.0.2", port, connected);
  REQUIRE(connected);
  const Socket accepted(accept(ours.get(), nullptr, nullptr));
  const Socket fair = connection("127.0.0.3", port, connected);
  REQUIRE(connected);
  const Socket kept(accept(ours.get(), nullptr, nullptr));

  ConnectionGuard guard;
  guard.admit({bytes_of("127.0.0.3"), bytes_of("::7")});
  CHECK(before.readable(1000));  // was closed: its peer is a foreign host
  CHECK_FALSE(fair.readable(0));
  REQUIRE(send(fair.get(), "hello", 5, 0) == 5);
  CHECK(kept.readable(1000));
  const Socket again = connection("127.0.0.3", port, connected);
  CHECK(connected);
  for (const char* foreign : {"127.0.0.2", "127.0.1.3", "::1"}) {
    INFO(foreign);
    const Socket s = connection(foreign, port, connected, 100);
    CHECK_FALSE(connected);
  }
  guard.admit({bytes_of("::1")});
  const Socket v6 = connection("::1", port, connected);
  CHECK(connected);
}

TEST_CASE("before the hosts are known, connections without a greeting are closed") {
  int port = 0;
  const Socket ours = listener(port);
  bool connected = false;
  const Socket silent = connection("127.0.0.2", port, connected), greets = connection("127.0.0.3", port, connected);
  REQUIRE(connected);
  const Socket first(accept(ours.get(), nullptr, nullptr)), second(accept(ours.get(), nullptr, nullptr));
  REQUIRE(send(silent.get(), "GET / HTTP/1.0\r\n\r\n", 18, 0) == 18);
  REQUIRE(send(greets.get(), "OPAL-TCP-BTL\0\0\0\0........", 24, 0) == 24);
  const ConnectionGuard guard;
  CHECK(silent.readable(20000));
  CHECK_FALSE(greets.readable(0));
}

TEST_CASE("a filter for thousands of hosts stays small and admits each of them") {
  AddressSet hosts;
  for (int k = 0; k < 5000; ++k) {
    hosts.insert(bytes_of(cat("127.", 1 + k / 65536, ".", k / 256 % 256, ".", k % 256).c_str()));
    hosts.insert(bytes_of(cat("fd00::", k / 100, ":", k % 100).c_str()));
  }
  CHECK(admitting_filter(hosts).size() < 1200);
  int port = 0;
  const Socket ours = listener(port);
  ConnectionGuard guard;
  guard.admit(hosts);
  bool connected = false;
  for (const int k : {0, 255, 256, 4999}) {
    const Socket s = connection(cat("127.1.", k / 256 % 256, ".", k % 256).c_str(), port, connected);
    CHECK(connected);
  }
  const Socket foreign = connection("127.9.0.1", port, connected, 100);
  CHECK_FALSE(connected);
}
