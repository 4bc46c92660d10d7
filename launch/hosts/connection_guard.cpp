#include "launch/hosts/connection_guard.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/tcp.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>

#include "kernels/core/check.h"

namespace gt {
namespace {

constexpr size_t kMostIpv4 = 128, kMostIpv6 = 64;  // a filter may take 20 KiB of kernel memory (optmem_max)
constexpr auto kTick = std::chrono::milliseconds(500), kLaterTick = std::chrono::milliseconds(2000);
constexpr uint32_t kHandshakeBytes = 24, kSilentMs = 2000;  // Open MPI 4.1: a 16-byte word and a process name

// TCP end point: port and address; an IPv4-mapped IPv6 address is stored as IPv4.
struct EndPoint {
  uint16_t port = 0;
  AddressBytes address;
  bool loopback() const { return address.size() == 4 ? address[0] == 127 : address == AddressBytes(15, '\0') + '\1'; }
};

std::optional<EndPoint> end_point(const sockaddr* at) {
  if (at->sa_family == AF_INET) {
    const auto& v4 = *reinterpret_cast<const sockaddr_in*>(at);
    return EndPoint{ntohs(v4.sin_port), AddressBytes(reinterpret_cast<const char*>(&v4.sin_addr), 4)};
  }
  if (at->sa_family != AF_INET6) return std::nullopt;
  const auto& v6 = *reinterpret_cast<const sockaddr_in6*>(at);
  const auto* bytes = reinterpret_cast<const char*>(&v6.sin6_addr);
  const bool mapped = IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr);
  return EndPoint{ntohs(v6.sin6_port), mapped ? AddressBytes(bytes + 12, 4) : AddressBytes(bytes, 16)};
}

template <class Name>  // Name: getsockname or getpeername
std::optional<EndPoint> end_point(const Name& name, int fd) {
  sockaddr_storage at{};
  socklen_t size = sizeof at;
  if (name(fd, reinterpret_cast<sockaddr*>(&at), &size) != 0) return std::nullopt;
  return end_point(reinterpret_cast<const sockaddr*>(&at));
}

bool listens(int fd) {
  int yes = 0;
  socklen_t size = sizeof yes;
  return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &yes, &size) == 0 && yes != 0;
}

bool attach(int fd, std::vector<sock_filter> filter) {
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0;
}

// Calls `use` with a duplicate of every socket of a process, so that the descriptor cannot be reused meanwhile.
void each_socket(pid_t pid, const std::function<void(int fd)>& use) {
  const bool self = pid == getpid();
  const int process = self ? -1 : static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  std::error_code ec;
  for (const auto& e : std::filesystem::directory_iterator(cat("/proc/", pid, "/fd"), ec)) {
    if (std::filesystem::read_symlink(e.path(), ec).string().rfind("socket:", 0) != 0) continue;
    const int theirs = std::atoi(e.path().filename().c_str());
    const int fd =
        self ? fcntl(theirs, F_DUPFD_CLOEXEC, 0) : static_cast<int>(syscall(SYS_pidfd_getfd, process, theirs, 0));
    if (fd < 0) continue;
    use(fd);
    close(fd);
  }
  if (process >= 0) close(process);
}

std::set<uint16_t> listening_ports(pid_t pid) {
  std::set<uint16_t> ports;
  each_socket(pid, [&](int fd) {
    if (const auto at = listens(fd) ? end_point(getsockname, fd) : std::nullopt) ports.insert(at->port);
  });
  return ports;
}

// Calls `use` with every connection to one of these ports and its remote end point.
void each_connection(pid_t pid, const std::set<uint16_t>& ports,
                     const std::function<void(int fd, const EndPoint& from)>& use) {
  each_socket(pid, [&](int fd) {
    const auto at = end_point(getsockname, fd), from = end_point(getpeername, fd);
    if (at && from && ports.count(at->port) != 0) use(fd, *from);
  });
}

tcp_info info_of(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) info = {};
  return info;
}
bool greeted(int fd) { return info_of(fd).tcpi_bytes_received >= kHandshakeBytes; }
uint32_t silent_ms(int fd) { return info_of(fd).tcpi_last_data_recv; }

// Returns the Open MPI process that is the parent of this one; 0 if the parent is something else.
pid_t daemon_above() {
  const pid_t parent = getppid();
  std::string name;
  std::ifstream(cat("/proc/", parent, "/comm")) >> name;
  return name == "orted" || name == "mpirun" || name == "orterun" ? parent : 0;
}

// Keeps the first `bits` bits of an address and clears the rest.
AddressBytes prefix(AddressBytes address, size_t bits) {
  for (size_t i = 0; i < address.size(); ++i)
    if (8 * i + 8 > bits) address[i] = static_cast<char>(8 * i >= bits ? 0 : address[i] & ~(0xff >> (bits - 8 * i)));
  return address;
}

// At most `most` prefixes of equal length that cover these addresses.
struct Prefixes {
  size_t bits;
  AddressSet values;
};
Prefixes prefixes(const AddressSet& addresses, size_t bytes, size_t most) {
  Prefixes out{8 * bytes, {}};
  for (const AddressBytes& a : addresses)
    if (a.size() == bytes) out.values.insert(a);
  for (; out.values.size() > most; out.bits -= bytes) {
    AddressSet shorter;
    for (const AddressBytes& a : out.values) shorter.insert(prefix(a, out.bits - bytes));
    out.values = std::move(shorter);
  }
  return out;
}

uint32_t word_of(const AddressBytes& bytes, size_t word) {
  uint32_t out = 0;
  std::memcpy(&out, bytes.data() + 4 * word, sizeof out);
  return ntohl(out);
}

constexpr sock_filter kAccept = BPF_STMT(BPF_RET | BPF_K, ~0u), kDrop = BPF_STMT(BPF_RET | BPF_K, 0);

// Accepts a packet whose source address, `offset` bytes into its IP header, has one of the prefixes; drops all others.
std::vector<sock_filter> source_check(const Prefixes& allowed, size_t bytes, uint32_t offset) {
  const AddressBytes mask = prefix(AddressBytes(bytes, '\xff'), allowed.bits);
  std::vector<sock_filter> out;
  for (const AddressBytes& a : allowed.values) {
    const auto words = static_cast<uint8_t>(bytes / 4);
    for (uint8_t w = 0; w < words; ++w) {
      out.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, SKF_NET_OFF + offset + 4 * w));
      out.push_back(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, word_of(mask, w)));
      const auto next = static_cast<uint8_t>(3 * (words - 1 - w) + 1);  // jump past kAccept
      out.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, word_of(a, w), 0, next));
    }
    out.push_back(kAccept);
  }
  out.push_back(kDrop);
  return out;
}

}  // namespace

AddressSet own_addresses() {
  AddressSet out;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return out;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
    if (const auto at = end_point(i->ifa_addr)) out.insert(at->address);
  }
  freeifaddrs(list);
  return out;
}

std::vector<sock_filter> admitting_filter(const AddressSet& addresses) {
  constexpr uint32_t kFlags = 13, kSyn = 2;
  const std::vector<sock_filter> v4 = source_check(prefixes(addresses, 4, kMostIpv4), 4, 12);
  const std::vector<sock_filter> v6 = source_check(prefixes(addresses, 16, kMostIpv6), 16, 8);
  std::vector<sock_filter> out{
      BPF_STMT(BPF_LD | BPF_B | BPF_ABS, kFlags),  // on a TCP socket, offset 0 is the TCP header
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, kSyn, 1, 0),
      kAccept,
      BPF_STMT(BPF_LD | BPF_B | BPF_ABS, static_cast<uint32_t>(SKF_NET_OFF)),
      BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 4),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 4, 1, 0),
      BPF_STMT(BPF_JMP | BPF_JA, static_cast<uint32_t>(v4.size())),
  };
  out.insert(out.end(), v4.begin(), v4.end());
  out.insert(out.end(), v6.begin(), v6.end());
  return out;
}

void close_silent_connections(pid_t process) {
  each_connection(process, listening_ports(process), [](int fd, const EndPoint&) {
    if (!greeted(fd) && silent_ms(fd) > kSilentMs) shutdown(fd, SHUT_RDWR);
  });
}

ConnectionGuard::ConnectionGuard()
    : daemon_(daemon_above()), thread_([this] {
        std::unique_lock lock(mutex_);
        while (!wake_.wait_for(lock, filter_.empty() ? kTick : kLaterTick, [this] { return done_; })) check_listeners();
      }) {}

ConnectionGuard::~ConnectionGuard() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void ConnectionGuard::admit(const AddressSet& addresses) {
  const std::lock_guard lock(mutex_);
  admitted_ = addresses;
  filter_ = admitting_filter(addresses);
  filtered_.clear();
  check_listeners();
  if (daemon_ == 0) return;
  AddressSet with_peers = addresses;  // mpirun may run on a host without ranks
  each_connection(daemon_, listening_ports(daemon_), [&](int fd, const EndPoint& from) {
    if (greeted(fd)) with_peers.insert(from.address);
  });
  const std::vector<sock_filter> filter = admitting_filter(with_peers);
  each_socket(daemon_, [&](int fd) {
    if (listens(fd)) attach(fd, filter);
  });
}

void ConnectionGuard::check_listeners() {
  if (filter_.empty()) {
    close_silent_connections(getpid());
    if (daemon_ != 0) close_silent_connections(daemon_);
    return;
  }
  each_socket(getpid(), [&](int fd) {
    struct stat s {};
    if (listens(fd) && fstat(fd, &s) == 0 && filtered_.count(s.st_ino) == 0 && attach(fd, filter_))
      filtered_.insert(s.st_ino);
  });
  each_connection(getpid(), listening_ports(getpid()), [&](int fd, const EndPoint& from) {
    if (admitted_.count(from.address) == 0) shutdown(fd, SHUT_RDWR);
  });
}

}  // namespace gt
