#include "parallel/comm/messages/socket_rendezvous.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/files.h"
#include "kernels/core/hash/sha256.h"
#include "kernels/core/host.h"
#include "parallel/comm/call.h"
#include "parallel/comm/messages/socket_address.h"
#include "parallel/comm/watch/node_link.h"

namespace gt {
namespace {

// All records have a fixed size, so that no byte of what follows is read:
//   accepting side   magic, nonce
//   connecting side  proof of the secret, nonce, rank, world size, address at which it listens
//   accepting side   proof of the secret, or "!" and a reason
//   rank 0, over TCP, once all are connected: the addresses of all ranks
constexpr char kMagic[] = "gtrank1\n";
constexpr size_t kMagicBytes = 8, kNonce = 32, kProof = 64, kNumber = 8, kAddress = 64;
constexpr size_t kGreeting = kMagicBytes + kNonce, kHello = kProof + kNonce + 2 * kNumber + kAddress;
constexpr double kGreetingSeconds = 3, kRetrySeconds = 0.05, kStopSeconds = 3;
constexpr size_t kMostUnproved = 64;  // connections that have not proved the secret yet
constexpr size_t kLeastSecret = 16;   // characters
constexpr int kUnixNames = 4;         // a rank listens at the first one that no other user has taken

std::string padded(std::string text, size_t bytes) {
  GT_CHECK(text.size() <= bytes, text, ": more than ", bytes, " characters");
  text.resize(bytes, ' ');
  return text;
}

std::string trimmed(const std::string& text) { return text.substr(0, text.find_last_not_of(' ') + 1); }

int number_of(const std::string& text) {
  int n = -1;
  return std::sscanf(text.c_str(), "%8d", &n) == 1 ? n : -1;
}

bool same(const std::string& a, const std::string& b) {  // in constant time
  unsigned char differ = a.size() != b.size();
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) differ |= static_cast<unsigned char>(a[i] ^ b[i]);
  return differ == 0;
}

bool is_strong(const std::string& secret) {
  return secret.size() >= kLeastSecret && secret.find_first_not_of("0123456789") != std::string::npos;
}

// One connection during its handshake. Closed unless taken.
struct Link {
  enum class Stage { kConnecting, kGreeting, kProof, kHello, kTable };
  int fd = -1;
  Stage stage = Stage::kConnecting;
  int rank = -1;  // of the peer; -1: unknown yet
  std::string in, nonce, from;
  size_t expected = 0;
  double since = 0;

  Link() = default;
  Link(Link&& o) noexcept { *this = std::move(o); }
  Link& operator=(Link&& o) noexcept {
    std::swap(fd, o.fd);
    stage = o.stage, rank = o.rank, expected = o.expected, since = o.since;
    in = std::move(o.in), nonce = std::move(o.nonce), from = std::move(o.from);
    return *this;
  }
  ~Link() { close(); }
  void close() {
    if (fd >= 0) ::close(fd);
    fd = -1;
  }
  void expect(Stage s, size_t bytes) { stage = s, expected = bytes, in.clear(); }
  void send(const std::string& text) {  // small enough for the buffer of a new socket, except a large table
    for (size_t at = 0; fd >= 0 && at < text.size();) {
      const ssize_t n = ::send(fd, text.data() + at, text.size() - at, MSG_NOSIGNAL);
      pollfd writable{fd, POLLOUT, 0};
      if (n > 0)
        at += static_cast<size_t>(n);
      else if (errno != EINTR && (errno != EAGAIN || ::poll(&writable, 1, 3000) <= 0))
        close();
    }
  }
  // Reads what is there; returns whether the record is complete. A closed connection closes the link.
  bool receive() {
    while (fd >= 0 && in.size() < expected) {
      char bytes[4096];
      const ssize_t n = recv(fd, bytes, std::min(sizeof bytes, expected - in.size()), 0);
      if (n > 0) in.append(bytes, static_cast<size_t>(n));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return false;
      if (n <= 0) close();
    }
    return fd >= 0;
  }
};

void tune(int fd) {
  const int on = 1, idle = 5, interval = 3, probes = 5, unacknowledged_ms = 20000;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms, sizeof unacknowledged_ms);
}

class Rendezvous {
 public:
  explicit Rendezvous(const SocketJob& job)
      : job_(job),
        one_machine_(job.local_world == job.world),
        key_(cat(job.secret, ' ', job.id, ' ', job.host, ' ', job.port)),
        fds_(static_cast<size_t>(job.world), -1),
        addresses_(static_cast<size_t>(job.world)),
        next_try_(static_cast<size_t>(job.world), 0.0),
        next_name_(static_cast<size_t>(job.world), 0),
        end_(now() + std::chrono::duration<double>(job.limit).count()) {}
  ~Rendezvous() {
    for (const int fd : fds_)
      if (fd >= 0) close(fd);
    for (const int fd : listeners_) close(fd);
  }

  std::vector<int> run() {
    GT_REQUIRE(
        one_machine_ || !job_.secret.empty(), Exit::kUsage,
        "ranks on several machines need a common secret, so that nobody else can connect: set GPTTRAIN_JOB_SECRET "
        "to one random word for all of them, or use torchrun --rdzv-id WORD");
    GT_REQUIRE(one_machine_ || is_loopback_name(job_.host) || is_strong(job_.secret), Exit::kUsage,
               "the job secret of ranks on several machines can be guessed: it has ", job_.secret.size(),
               " characters, at least ", kLeastSecret,
               " are needed, and not digits alone; set GPTTRAIN_JOB_SECRET to one "
               "random word for all of them, as of `openssl rand -hex 16`, which takes precedence over "
               "torchrun --rdzv-id");
    if (one_machine_) listen_unix();
    if (!one_machine_ && job_.rank == 0) listen_at_port();
    while (!complete()) {
      end_if_stopped();
      const bool has_first = reaches_first();  // rank 0 reports who is late
      if (now() > end_ + (has_first ? kGreetingSeconds : 0)) fail(Exit::kIo, late_text());
      if (has_first && fds_[0] >= 0 && is_closed(fds_[0])) first_ended();
      connect_to_lower_ranks();
      wait_for_events();
      accept_all();
      for (size_t i = 0; i < links_.size(); ++i) serve(links_[i]);
      std::erase_if(links_, [](const Link& l) { return l.fd < 0; });
      if (!one_machine_ && job_.rank == 0 && complete()) send_addresses();
    }
    return std::exchange(fds_, {});
  }

 private:
  void end_if_stopped() {
    if (stop_by_ < 0 && job_.stopped && job_.stopped()) stop_by_ = now() + kStopSeconds;
    if (stop_by_ >= 0 && now() > stop_by_) fail(Exit::kInterrupted, "stopped while ranks connected; nothing was lost");
  }

  bool reaches_first() const {
    return job_.rank > 0 && (fds_[0] >= 0 || std::any_of(links_.begin(), links_.end(),
                                                         [](const Link& l) { return l.stage == Link::Stage::kTable; }));
  }
  bool has_table() const { return one_machine_ || job_.rank == 0 || !table_.empty(); }
  bool complete() const {
    for (int r = 0; r < job_.world; ++r)
      if (r != job_.rank && fds_[static_cast<size_t>(r)] < 0) return false;
    return has_table();
  }

  sockaddr_un unix_name(int rank, int k, socklen_t& size) const {
    sockaddr_un a{};
    a.sun_family = AF_UNIX;
    const std::string name = cat("gpttrain-", sha256_hex(cat(key_, ' ', geteuid())).substr(0, 32), '-', rank,
                                 k > 0 ? cat('.', k) : std::string());
    std::memcpy(a.sun_path + 1, name.data(), name.size());  // a leading zero: abstract, vanishes with the process
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    return a;
  }

  // Names of Unix sockets belong to no user: another one may have taken those of a job whose id it can guess.
  void listen_unix() {
    std::string users;
    for (int k = 0; k < kUnixNames; ++k) {
      socklen_t size = 0;
      const sockaddr_un a = unix_name(job_.rank, k, size);
      const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      if (fd >= 0) listeners_.push_back(fd);
      const bool ok = fd >= 0 && bind(fd, reinterpret_cast<const sockaddr*>(&a), size) == 0 && listen(fd, 1024) == 0;
      if (ok) return;
      GT_REQUIRE(fd >= 0 && errno == EADDRINUSE, Exit::kIo, "a Unix socket for the ranks: ", std::strerror(errno));
      ::close(fd);
      listeners_.pop_back();
      const int64_t user = user_at(a, size);
      GT_REQUIRE(user != geteuid(), Exit::kUsage, "rank ", job_.rank, " of a job with MASTER_PORT ", job_.port,
                 " runs on ", host_name(), " already; end that job, or use another MASTER_PORT");
      users += cat(users.empty() ? "" : ", ", user < 0 ? std::string("unknown") : std::to_string(user));
    }
    fail(Exit::kUsage, "other users of ", host_name(), " (", users,
         ") hold the names of this job's Unix sockets, with ", "MASTER_PORT ", job_.port,
         "; set GPTTRAIN_JOB_SECRET to a random word for all ranks (torchrun --rdzv-id WORD)");
  }

  // User of the process that listens at a name; -1: unknown.
  static int64_t user_at(const sockaddr_un& a, socklen_t size) {
    const Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    ucred peer{};
    socklen_t bytes = sizeof peer;
    if (!fd || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&a), size) != 0 ||
        getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0)
      return -1;
    return peer.uid;
  }

  // Listens at `a`; returns false if the port is in use or the address is not of this machine.
  bool listen_tcp(SocketAddress& a) {
    const int fd = socket(a.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return false;
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, a.get(), a.size) == 0 && listen(fd, 1024) == 0 && getsockname(fd, a.get(), &a.size) == 0) {
      listeners_.push_back(fd);
      return true;
    }
    const int error = errno;
    close(fd);
    errno = error;
    return false;
  }

  // At comm.interface, else at MASTER_ADDR, else (a name that this machine maps to loopback, or an address that is not
  // of this machine: a translated one) at all addresses.
  std::vector<std::string> addresses_to_listen_at() const {
    if (!job_.address.empty()) return {job_.address};
    const bool loopback = is_loopback_name(job_.host);
    std::vector<std::string> where;
    for (const SocketAddress& a : resolve(job_.host, job_.port))
      if (a.is_loopback() == loopback) where.push_back(a.ip());
    if (!loopback) where.insert(where.end(), {"::", "0.0.0.0"});  // the former takes both kinds, where there is IPv6
    return where;
  }

  void listen_at_port() {
    const std::vector<std::string> where = addresses_to_listen_at();
    for (int port = job_.port; port < job_.port + job_.ports; ++port)
      for (const std::string& ip : where) {
        SocketAddress a;
        if (a.parse(ip, port) && listen_tcp(a)) return;
        if (errno == EADDRINUSE) break;
      }
    fail(Exit::kUsage, "rank 0 cannot listen at port ", job_.port,
         job_.ports > 1 ? cat(" to ", job_.port + job_.ports - 1) : std::string(), " of ", host_name(), ": ",
         std::strerror(errno), "; set another MASTER_PORT (torchrun --master-port, --rdzv-endpoint)");
  }

  void connect_to_lower_ranks() {
    const int last = has_table() ? job_.rank : 1;
    for (int r = 0; r < std::min(last, job_.rank); ++r) {
      const auto k = static_cast<size_t>(r);
      const bool tried = std::any_of(links_.begin(), links_.end(), [&](const Link& l) { return l.rank == r; });
      if (fds_[k] >= 0 || tried || now() < next_try_[k]) continue;
      next_try_[k] = now() + kRetrySeconds;
      one_machine_ ? connect_unix(r) : connect_tcp(r);
    }
  }

  void connect_unix(int r) {
    int& next = next_name_[static_cast<size_t>(r)];  // after one at which another user listens
    for (int i = 0; i < kUnixNames; ++i) {
      socklen_t size = 0;
      const sockaddr_un a = unix_name(r, (next + i) % kUnixNames, size);
      const size_t before = links_.size();
      start(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), reinterpret_cast<const sockaddr*>(&a), size,
            r, cat("rank ", r));
      if (links_.size() == before) continue;  // nobody listens there
      next = (next + i + 1) % kUnixNames;
      return;
    }
  }

  void connect_tcp(int r) {
    SocketAddress to;
    if (r > 0) {
      std::istringstream in(addresses_[static_cast<size_t>(r)]);
      std::string ip;
      int port = 0;
      GT_REQUIRE(in >> ip >> port && to.parse(ip, port), Exit::kInternal, "rank 0 sent no address of rank ", r);
    } else {
      const std::vector<SocketAddress> all = resolve(job_.host, job_.port + attempts_ % job_.ports);
      GT_REQUIRE(!all.empty(), Exit::kUsage, "MASTER_ADDR ", job_.host, ": ", host_name(), " cannot resolve this name");
      to = all[static_cast<size_t>(attempts_++ / job_.ports) % all.size()];
    }
    const int fd = socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    SocketAddress own;
    if (fd >= 0 && !job_.address.empty() && own.parse(job_.address, 0)) bind(fd, own.get(), own.size);
    start(fd, to.get(), to.size, r, cat(to.ip(), " port ", to.port()));
  }

  void start(int fd, const sockaddr* to, socklen_t size, int rank, std::string from) {
    if (fd < 0) return;
    Link l;
    l.fd = fd, l.rank = rank, l.since = now(), l.from = std::move(from);
    if (::connect(fd, to, size) != 0 && errno != EINPROGRESS) return;
    links_.push_back(std::move(l));
  }

  void wait_for_events() {
    std::vector<pollfd> waits;
    for (const int fd : listeners_) waits.push_back({fd, POLLIN, 0});
    for (const Link& l : links_)
      waits.push_back({l.fd, static_cast<short>(l.stage == Link::Stage::kConnecting ? POLLOUT : POLLIN), 0});
    ::poll(waits.data(), waits.size(), 20);
  }

  void accept_all() {
    for (const int listener : listeners_)
      for (;;) {
        Link l;
        SocketAddress from;
        from.size = sizeof from.storage;
        l.fd = accept4(listener, from.get(), &from.size, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (l.fd < 0) break;
        const auto unproved = std::count_if(links_.begin(), links_.end(), [](const Link& k) { return k.rank < 0; });
        if (!trusted_user(l.fd) || static_cast<size_t>(unproved) >= kMostUnproved) continue;
        l.from = one_machine_ ? "this machine" : from.ip();
        l.since = now();
        l.nonce = random_word();
        l.send(kMagic + l.nonce);
        l.expect(Link::Stage::kHello, kHello);
        links_.push_back(std::move(l));
      }
  }

  bool trusted_user(int fd) const {
    if (!one_machine_) return true;
    ucred peer{};
    socklen_t size = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
  }

  void serve(Link& l) {
    if (l.stage == Link::Stage::kConnecting) {
      int error = 0;
      socklen_t size = sizeof error;
      pollfd writable{l.fd, POLLOUT, 0};
      if (::poll(&writable, 1, 0) > 0) {
        if (getsockopt(l.fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0 || !trusted_user(l.fd))
          return l.close();
        l.expect(Link::Stage::kGreeting, kGreeting);
      }
    }
    if (l.stage != Link::Stage::kConnecting && l.receive()) return next(l);
    if (l.fd < 0 && l.stage == Link::Stage::kTable) first_ended();
    if (l.stage != Link::Stage::kTable && now() - l.since > kGreetingSeconds) l.close();
  }

  // A record is complete.
  void next(Link& l) {
    switch (l.stage) {
      case Link::Stage::kGreeting: return answer(l);
      case Link::Stage::kHello: return check(l);
      case Link::Stage::kProof: return accepted(l);
      default: return take_addresses(l);
    }
  }

  std::string proof(const char* side, const std::string& nonce, const std::string& facts) const {
    return sha256_hex(cat("rank of gpttrain ", side, ' ', key_, ' ', nonce, ' ', facts, ' ', key_));
  }

  void answer(Link& l) {
    if (l.in.compare(0, kMagicBytes, kMagic) != 0) return l.close();  // another program's port
    if (!one_machine_ && listeners_.empty()) {                        // this rank listens where it reaches rank 0
      SocketAddress own;
      own.size = sizeof own.storage;
      if (getsockname(l.fd, own.get(), &own.size) != 0 || !own.parse(own.ip(), 0) || !listen_tcp(own)) return l.close();
      listens_at_ = cat(own.ip(), ' ', own.port());
    }
    const std::string facts = padded(std::to_string(job_.rank), kNumber) + padded(std::to_string(job_.world), kNumber) +
                              padded(listens_at_, kAddress);
    l.nonce = random_word();
    l.send(proof("connects", l.in.substr(kMagicBytes), facts) + l.nonce + facts);
    l.expect(Link::Stage::kProof, kProof);
  }

  void check(Link& l) {
    const std::string facts = l.in.substr(kProof + kNonce);
    const auto refuse = [&](const std::string& why) {
      l.send(padded("!" + why, kProof));
      l.close();
    };
    if (!same(l.in.substr(0, kProof), proof("connects", l.nonce, facts))) {
      refused_ = cat("; a connection from ", l.from, " had another job secret");
      return refuse("secret");
    }
    const int rank = number_of(facts.substr(0, kNumber)), world = number_of(facts.substr(kNumber, kNumber));
    if (world != job_.world) return refuse(cat("WORLD_SIZE is ", job_.world, " on rank ", job_.rank));
    if (rank <= job_.rank || rank >= job_.world) return refuse("RANK out of range");
    if (fds_[static_cast<size_t>(rank)] >= 0) return refuse(cat("rank ", rank, " is connected already"));
    l.send(proof("accepts", l.in.substr(kProof, kNonce), ""));
    addresses_[static_cast<size_t>(rank)] = trimmed(facts.substr(2 * kNumber));
    keep(l, rank);
  }

  void accepted(Link& l) {
    if (l.in[0] == '!') {
      const std::string why = trimmed(l.in.substr(1));
      refused_ = cat("; ", l.from, " refused it: ", why == "secret" ? "another job secret" : why);
      if (why != "secret" || job_.ports == 1)
        fail(Exit::kUsage, "rank ", l.rank, " at ", l.from, " refused the connection: ",
             why == "secret" ? "its job secret differs (GPTTRAIN_JOB_SECRET, torchrun --rdzv-id)" : why);
      return l.close();
    }
    if (!same(l.in, proof("accepts", l.nonce, ""))) return l.close();
    if (one_machine_ || l.rank > 0) return keep(l, l.rank);
    l.expect(Link::Stage::kTable, kAddress * static_cast<size_t>(job_.world));
  }

  void send_addresses() {
    std::string table;
    for (const std::string& a : addresses_) table += padded(a, kAddress);
    for (const int fd : fds_) {
      if (fd < 0) continue;
      Link l;
      l.fd = fd;
      l.send(table);
      l.fd = -1;
    }
  }

  void take_addresses(Link& l) {
    table_ = l.in;
    for (size_t r = 0; r < addresses_.size(); ++r) addresses_[r] = trimmed(table_.substr(r * kAddress, kAddress));
    keep(l, 0);
  }

  void keep(Link& l, int rank) {
    if (!one_machine_) tune(l.fd);
    fds_[static_cast<size_t>(rank)] = std::exchange(l.fd, -1);
  }

  static bool is_closed(int fd) {
    char byte;
    const ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
  }

  [[noreturn]] static void first_ended() {
    fail(Exit::kIo, "rank 0 ended before all ranks had connected; its message has the reason");
  }

  std::string late_text() const {
    std::vector<int> missing;
    for (int r = 0; r < job_.world; ++r)
      if (r != job_.rank && fds_[static_cast<size_t>(r)] < 0) missing.push_back(r);
    return cat(
        "ranks ", to_string(missing), " of ", job_.world, " did not connect to rank ", job_.rank, " on ", host_name(),
        " within ", std::chrono::duration<double>(job_.limit).count(), " s", refused_,
        "; start them with the same MASTER_ADDR and MASTER_PORT, or raise launch.start_timeout_s if they are only "
        "slow");
  }

  const SocketJob& job_;
  const bool one_machine_;
  const std::string key_;
  std::vector<int> fds_, listeners_;
  std::vector<std::string> addresses_;  // at which ranks listen
  std::vector<double> next_try_;
  std::vector<int> next_name_;  // of a rank's Unix socket, to be tried next
  std::vector<Link> links_;
  std::string table_, listens_at_, refused_;
  int attempts_ = 0;
  const double end_;
  double stop_by_ = -1;
};

}  // namespace

std::vector<int> connect_ranks(const SocketJob& job) { return Rendezvous(job).run(); }

}  // namespace gt
