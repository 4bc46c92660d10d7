#include "parallel/comm/watch/node_link.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "kernels/core/check.h"
#include "kernels/core/hash/sha256.h"
#include "parallel/comm/messages/socket_address.h"

namespace gt {
namespace {

constexpr size_t kUnsentBytes = 2 * kMaxReportBytes, kMaxUnauthenticated = 64, kWordChars = 32, kAnswerChars = 64;
constexpr int64_t kSecond = 1'000'000'000, kGreetingNs = 5 * kSecond, kConnectNs = 3 * kSecond;
constexpr int64_t kSilentNs = kSecond, kPromptNs = kSecond / 2;

constexpr char kEnds[] = "E", kDone[] = "D";

// Mutual challenge-response: the hub sends a nonce, the link its answer and a nonce of its own, the hub the answer to
// that.
std::string answer_to(const std::string& secret, const std::string& word, const char* side) {
  return sha256_hex(cat("gpttrain ", side, ' ', secret, ' ', word, ' ', secret));
}

}  // namespace

std::string random_word() {
  uint8_t bytes[16] = {};
  GT_CHECK(getrandom(bytes, sizeof bytes, 0) == sizeof bytes);
  return to_hex(bytes, sizeof bytes);
}

FrameSocket::~FrameSocket() { close(); }

void FrameSocket::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void FrameSocket::send(std::string_view frame) {
  if (!open()) return;
  const auto size = static_cast<uint32_t>(frame.size());
  out_.append(reinterpret_cast<const char*>(&size), sizeof size);
  out_.append(frame);
  if (out_.size() > kUnsentBytes) close();
  pump();
}

void FrameSocket::pump() {
  while (open() && !out_.empty()) {
    const ssize_t n = ::send(fd_, out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) out_.erase(0, static_cast<size_t>(n));
    if (n < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOTCONN)) break;
    if (n < 0) close();
  }
  char bytes[64 << 10];
  while (open() && in_.size() <= kMaxReportBytes) {
    const ssize_t n = recv(fd_, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n > 0) in_.append(bytes, static_cast<size_t>(n));
    if (n < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOTCONN)) return;
    if (n <= 0) close();
  }
}

double FrameSocket::unacknowledged_s() const {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (!open() || getsockopt(fd_, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || info.tcpi_unacked == 0) return 0;
  return 1e-3 * std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv);
}

bool FrameSocket::take(size_t most, std::string& frame) {
  uint32_t size = 0;
  if (in_.size() < sizeof size) return false;
  std::memcpy(&size, in_.data(), sizeof size);
  if (size > most) {
    in_.clear();
    close();
    return false;
  }
  if (in_.size() < sizeof size + size) return false;
  frame = in_.substr(sizeof size, size);
  in_.erase(0, sizeof size + size);
  return true;
}

NodeHub::NodeHub(std::string secret, const std::string& only) : secret_(std::move(secret)) {
  for (const std::string& ip : interface_addresses(only)) {
    SocketAddress a;
    if (!a.parse(ip, 0)) continue;
    const int fd = socket(a.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) continue;
    if (bind(fd, a.get(), a.size) != 0 || listen(fd, 128) != 0 || getsockname(fd, a.get(), &a.size) != 0) {
      ::close(fd);
      continue;
    }
    listeners_.push_back(fd);
    address_ += cat(address_.empty() ? "" : " ", ip, ' ', a.port());
  }
}

NodeHub::~NodeHub() {
  for (Peer& p : peers_)
    if (p.answer.empty()) p.socket->send(kDone);
  for (const int fd : listeners_) ::close(fd);
}

void NodeHub::accept_all(int64_t now) {
  for (const int listener : listeners_)
    for (int fd; (fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0;) {
      Peer p{std::make_unique<FrameSocket>(fd), now, "", -1};
      const auto unauthenticated =
          std::count_if(peers_.begin(), peers_.end(), [](const Peer& q) { return !q.answer.empty(); });
      if (static_cast<size_t>(unauthenticated) >= kMaxUnauthenticated) continue;  // destructor closes it
      const std::string word = random_word();
      p.answer = answer_to(secret_, word, "link");
      p.socket->send(word);
      peers_.push_back(std::move(p));
    }
}

void NodeHub::receive_from(Peer& p, int64_t now) {
  p.socket->pump();
  for (std::string frame; p.socket->take(p.answer.empty() ? kMaxReportBytes : kAnswerChars + kWordChars, frame);) {
    if (!p.answer.empty()) {
      if (frame.substr(0, kAnswerChars) != p.answer) return p.socket->close();
      p.answer.clear();
      p.socket->send(answer_to(secret_, frame.substr(kAnswerChars), "hub"));
      continue;
    }
    auto report = decode(frame, now);
    if (!report) return p.socket->close();
    p.node = report->ranks[0].world_rank;
    nodes_[p.node] = {std::move(*report), now, 0, 0};
    p.socket->send("");
  }
  if (!p.answer.empty() && now - p.since > kGreetingNs) p.socket->close();
}

void NodeHub::prompt_if_silent(Peer& p, int64_t now) {
  if (p.node < 0 || now - nodes_[p.node].heard < kSilentNs || now - p.prompted < kPromptNs) return;
  p.prompted = now;
  p.socket->send("");  // as the answer to a report
}

void NodeHub::poll(int64_t now) {
  accept_all(now);
  for (Peer& p : peers_) {
    receive_from(p, now);
    prompt_if_silent(p, now);
  }
  for (auto& [rank, node] : nodes_) {
    const auto there = std::find_if(peers_.begin(), peers_.end(),
                                    [&, r = rank](const Peer& p) { return p.node == r && p.socket->open(); });
    node.unreachable_s = there == peers_.end() ? 0 : there->socket->unacknowledged_s();
    if (there != peers_.end())
      node.closed = 0;
    else if (node.closed == 0)
      node.closed = now;
  }
  std::erase_if(peers_, [](const Peer& p) { return !p.socket->open(); });
}

void NodeHub::end(const std::string& text) {
  for (Peer& p : peers_)
    if (p.answer.empty()) p.socket->send(kEnds + text);
}

NodeLink::NodeLink(const std::string& address, std::string secret) : secret_(std::move(secret)) {
  std::istringstream in(address);
  for (Address a; in >> a.ip >> a.port;) addresses_.push_back(a);
}

// Tries the hub's addresses in turn: this machine may reach only some of them, or another machine at the same address.
void NodeLink::connect(int64_t now) {
  trusted_ = false;
  awaited_.clear();
  socket_.reset();
  begun_ = now;
  if (addresses_.empty()) return;
  const Address& to = addresses_[next_++ % addresses_.size()];
  SocketAddress a;
  if (!a.parse(to.ip, to.port)) return;
  const int fd = socket(a.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return;
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  socket_ = std::make_unique<FrameSocket>(fd);
  if (::connect(fd, a.get(), a.size) != 0 && errno != EINPROGRESS) socket_.reset();
}

void NodeLink::poll(int64_t now) {
  const bool stuck = !trusted_ && now - begun_ > kConnectNs;
  const bool lost = (socket_ == nullptr || !socket_->open()) && now - begun_ > kSecond;
  if (begun_ == 0 || stuck || lost) connect(now);
  if (socket_ == nullptr) return;
  socket_->pump();
  for (std::string frame; socket_->take(kMaxReportBytes, frame);) {
    if (trusted_) {
      heard_ = now;
      done_ = done_ || frame == kDone;
      if (frame.rfind(kEnds, 0) == 0 && ended_.empty()) ended_ = frame;
    } else if (awaited_.empty()) {
      const std::string word = random_word();
      awaited_ = answer_to(secret_, word, "hub");
      socket_->send(answer_to(secret_, frame, "link") + word);
    } else if (frame == awaited_) {
      trusted_ = true;
    } else {
      return socket_->close();
    }
  }
}

void NodeLink::report(const NodeReport& r, int64_t now) {
  poll(now);
  if (socket_ != nullptr && trusted_) socket_->send(encode(r, now));
}

}  // namespace gt
