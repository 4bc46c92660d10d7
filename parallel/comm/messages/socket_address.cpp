#include "parallel/comm/messages/socket_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace gt {
namespace {

const sockaddr_in& v4(const SocketAddress& a) { return reinterpret_cast<const sockaddr_in&>(a.storage); }
const sockaddr_in6& v6(const SocketAddress& a) { return reinterpret_cast<const sockaddr_in6&>(a.storage); }
bool is_v4(const SocketAddress& a) { return a.storage.ss_family == AF_INET; }

}  // namespace

bool SocketAddress::parse(const std::string& ip, int port) {
  auto& four = reinterpret_cast<sockaddr_in&>(storage);
  auto& six = reinterpret_cast<sockaddr_in6&>(storage);
  if (inet_pton(AF_INET, ip.c_str(), &four.sin_addr) == 1) {
    four.sin_family = AF_INET, four.sin_port = htons(static_cast<uint16_t>(port)), size = sizeof four;
  } else if (inet_pton(AF_INET6, ip.c_str(), &six.sin6_addr) == 1) {
    six.sin6_family = AF_INET6, six.sin6_port = htons(static_cast<uint16_t>(port)), size = sizeof six;
  }
  return size > 0;
}

std::string SocketAddress::ip() const {
  char text[INET6_ADDRSTRLEN] = {};
  if (is_v4(*this))
    inet_ntop(AF_INET, &v4(*this).sin_addr, text, sizeof text);
  else
    inet_ntop(AF_INET6, &v6(*this).sin6_addr, text, sizeof text);
  return text;
}

int SocketAddress::port() const { return ntohs(is_v4(*this) ? v4(*this).sin_port : v6(*this).sin6_port); }

bool SocketAddress::is_loopback() const {
  if (!is_v4(*this)) return IN6_IS_ADDR_LOOPBACK(&v6(*this).sin6_addr);
  return ntohl(v4(*this).sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

std::vector<std::string> interface_addresses(const std::string& only) {
  std::vector<std::string> out;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return out;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
    SocketAddress a;
    a.storage.ss_family = i->ifa_addr->sa_family;
    if (a.storage.ss_family != AF_INET && a.storage.ss_family != AF_INET6) continue;
    std::memcpy(&a.storage, i->ifa_addr, is_v4(a) ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    if (!is_v4(a) && IN6_IS_ADDR_LINKLOCAL(&v6(a).sin6_addr)) continue;
    const std::string text = a.ip();
    const bool usable = only.empty() ? (i->ifa_flags & IFF_LOOPBACK) == 0 : only == text || only == i->ifa_name;
    if (usable) out.push_back(text);
  }
  freeifaddrs(list);
  return out;
}

bool is_loopback_name(const std::string& host) {
  SocketAddress a;
  return host == "localhost" || (a.parse(host, 0) && a.is_loopback());
}

std::vector<SocketAddress> resolve(const std::string& host, int port) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  std::vector<SocketAddress> out;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list) != 0) return out;
  for (const addrinfo* i = list; i != nullptr; i = i->ai_next) {
    if (i->ai_addrlen > sizeof(sockaddr_storage)) continue;
    SocketAddress a;
    std::memcpy(&a.storage, i->ai_addr, i->ai_addrlen);
    a.size = i->ai_addrlen;
    out.push_back(a);
  }
  freeaddrinfo(list);
  std::stable_partition(out.begin(), out.end(), is_v4);
  return out;
}

}  // namespace gt
