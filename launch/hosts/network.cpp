#include "launch/hosts/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <optional>
#include <vector>

#include "kernels/core/check.h"
#include "kernels/core/host.h"
#include "launch/options/json_text.h"

namespace gt {
namespace {

struct Interface {
  std::string name;
  uint32_t address;  // in host byte order
};

std::vector<Interface> interfaces() {
  std::vector<Interface> out;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return out;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET || (i->ifa_flags & IFF_UP) == 0) continue;
    const auto* address = reinterpret_cast<const sockaddr_in*>(i->ifa_addr);
    out.push_back({i->ifa_name, ntohl(address->sin_addr.s_addr)});
  }
  freeifaddrs(list);
  return out;
}

std::string dotted(uint32_t address) {
  return cat(address >> 24, ".", address >> 16 & 255, ".", address >> 8 & 255, ".", address & 255);
}

struct Subnet {
  uint32_t address = 0, mask = 0;
};

std::optional<Subnet> subnet(const std::string& text) {
  const size_t slash = text.find('/');
  in_addr address{};
  int64_t bits = 0;
  if (slash == std::string::npos || inet_pton(AF_INET, text.substr(0, slash).c_str(), &address) != 1 ||
      !parse_int(text.substr(slash + 1), bits) || bits < 1 || bits > 32)
    return std::nullopt;
  const uint32_t mask = ~uint32_t{0} << (32 - bits);
  return Subnet{ntohl(address.s_addr) & mask, mask};
}

}  // namespace

std::string bad_interface(const std::string& text) {
  if (text.empty() || subnet(text)) return "";
  constexpr const char* kNames = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
  const bool name = text.size() < IFNAMSIZ && text[0] != '-' && text.find_first_not_of(kNames) == std::string::npos;
  return name ? "" : cat("expected the name of an interface or a subnet a.b.c.d/1..32, found \"", text, "\"");
}

std::string interface_here(const std::string& text) {
  const auto net = subnet(text);
  std::string found;
  for (const Interface& i : interfaces()) {
    if (net ? (i.address & net->mask) == net->address : i.name == text) return i.name;
    found += cat(found.empty() ? "" : ", ", i.name, " ", dotted(i.address));
  }
  fail(Exit::kUsage, "comm.interface ", text, ": ", host_name(), " has no such network interface that is up; it has ",
       found.empty() ? "none" : found);
}

std::vector<std::string> interfaces_up() {
  std::vector<std::string> out;
  for (const Interface& i : interfaces())
    if (i.address >> 24 != IN_LOOPBACKNET) out.push_back(cat(i.name, " ", dotted(i.address)));
  return out;
}

Variables local_network() {
  Variables out{{"OMPI_MCA_pml", "ob1"}, {"OMPI_MCA_btl", "self,vader"}};
  bool loopback = false;
  for (const Interface& i : interfaces()) loopback = loopback || i.name == "lo";
  // Open MPI rejects include and exclude together
  if (loopback && std::getenv("OMPI_MCA_oob_tcp_if_exclude") == nullptr)
    out.emplace_back("OMPI_MCA_oob_tcp_if_include", "lo");
  return out;
}

Variables remote_network(const std::string& interface) {
  Variables out;
  if (interface.empty()) return out;
  for (const char* user : {"oob_tcp", "btl_tcp"})
    if (std::getenv(cat("OMPI_MCA_", user, "_if_exclude").c_str()) == nullptr)
      out.emplace_back(cat("OMPI_MCA_", user, "_if_include"), interface);
  return out;
}

void set_network_environment(const RankEnv& env, const std::string& interface) {
  Variables variables;
  if (env.world > 0 && env.local_world == env.world) {
    variables = local_network();
  } else if (!interface.empty()) {
    const std::string name = interface_here(interface);
    variables = remote_network(interface);
    variables.emplace_back("NCCL_SOCKET_IFNAME", "=" + name);  // "=": exact name; without it NCCL matches prefixes
  }
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 0);
}

}  // namespace gt
