#include "parallel/comm/messages/socket_transport.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <numeric>
#include <tuple>

#include "kernels/core/check.h"
#include "kernels/core/host.h"
#include "parallel/comm/call.h"
#include "parallel/comm/messages/message_group.h"

namespace gt {
namespace {

enum Control : int32_t { kNote, kLeaves, kAborts, kWakes, kMemory };  // tags of channel 0
constexpr int64_t kMostBytes = int64_t{1} << 40;                      // of a message
constexpr size_t kStep = 1 << 20;  // growth of a buffer whose receive is not posted yet
constexpr double kLeaveSeconds = 600, kAbortSeconds = 0.5;

// Messages from kLarge bytes on pass in shared memory, which holds kAhead of them: a pipeline sends ahead.
constexpr int64_t kLarge = 64 << 10, kLeastRing = 4 << 20, kMostRing = int64_t{1} << 30, kAhead = 4;

bool is_unix(int fd) {
  int domain = 0;
  socklen_t size = sizeof domain;
  return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX;
}

// Buffer for the descriptor that may come with a header.
union AncillaryData {
  cmsghdr aligned;
  char bytes[CMSG_SPACE(sizeof(int))];
};

void attach(msghdr& message, AncillaryData& ancillary, int fd) {
  message.msg_control = ancillary.bytes, message.msg_controllen = sizeof ancillary.bytes;
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
}

Fd attached(msghdr& message) {
  const cmsghdr* c = CMSG_FIRSTHDR(&message);
  if (c == nullptr || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len < CMSG_LEN(sizeof(int)))
    return Fd();
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(c), sizeof fd);
  return Fd(fd);
}

}  // namespace

void SocketSet::use(MessageChannel& channel) {
  channel_ = &static_cast<SocketChannel&>(channel);
  requests_.clear();
  left_ = 0;
}

void SocketSet::send(const std::byte* from, int64_t bytes, int peer, int tag) {
  requests_.push_back({peer, false, false, bytes, bytes});
  ++left_;
  transport_.post_send(channel_->ranks[static_cast<size_t>(peer)], {bytes, channel_->number, tag}, from,
                       {this, requests_.size() - 1});
}

void SocketSet::receive(std::byte* to, int64_t bytes, int peer, int tag) {
  requests_.push_back({peer, true, false, bytes, bytes});
  ++left_;
  transport_.post_receive(channel_->ranks[static_cast<size_t>(peer)], {bytes, channel_->number, tag}, to,
                          {this, requests_.size() - 1});
}

void SocketSet::finish(size_t index, int64_t bytes) {
  requests_[index].done = true;
  requests_[index].sent = bytes;
  --left_;
}

MessageSet::State SocketSet::test() {
  for (const Request& r : requests_)
    if (r.done && r.sent != r.bytes) return {false, r.peer, r.bytes, r.sent};
  if (left_ == 0) {
    requests_.clear();
    return {true};
  }
  for (const Request& r : requests_) {
    if (r.done) continue;
    const int world = channel_->ranks[static_cast<size_t>(r.peer)];
    transport_.require_alive(world);  // lost by a send of this call
    GT_REQUIRE(transport_.peers_[static_cast<size_t>(world)].lost.empty(), Exit::kInternal, "rank ", world,
               " has left while rank ", transport_.rank(), " exchanges messages with it");
  }
  return {};
}

void SocketSet::missing(std::vector<int>& peers, bool sends) const {
  for (const Request& r : requests_)
    if (!r.done && (r.receive || sends)) peers.push_back(r.peer);
}

void SocketSet::abandon() {
  if (left_ > 0) transport_.abandon(this);
  requests_.clear();
  left_ = 0;
}

SocketTransport::SocketTransport(const SocketJob& job, bool share_memory)
    : rank_(job.rank), reports_abort_(job.reports_abort), unwinding_(std::uncaught_exceptions()) {
  GT_CHECK(job.rank >= 0 && job.rank < job.world && job.local_rank >= 0 && job.local_rank < job.local_world &&
           job.local_rank <= job.rank && job.rank - job.local_rank + job.local_world <= job.world);
  local_ranks_.resize(static_cast<size_t>(job.local_world));
  std::iota(local_ranks_.begin(), local_ranks_.end(), job.rank - job.local_rank);
  events_ = epoll_create1(EPOLL_CLOEXEC);
  GT_REQUIRE(events_ >= 0, Exit::kInternal, "epoll_create1: ", std::strerror(errno));
  const std::vector<int> fds = connect_ranks(job);
  peers_.resize(fds.size());
  for (size_t r = 0; r < fds.size(); ++r) {
    peers_[r].fd = fds[r];
    peers_[r].shares_memory = share_memory && fds[r] >= 0 && is_unix(fds[r]);
    epoll_event e{EPOLLIN, {.u32 = static_cast<uint32_t>(r)}};
    GT_CHECK(fds[r] < 0 || epoll_ctl(events_, EPOLL_CTL_ADD, fds[r], &e) == 0, std::strerror(errno));
  }
}

SocketTransport::~SocketTransport() {
  if (std::uncaught_exceptions() == unwinding_) leave_together();
  for (const Peer& p : peers_)
    if (p.fd >= 0) close(p.fd);
  close(events_);
}

// A rank that closed its sockets early would look like one that died.
void SocketTransport::leave_together() {
  const auto other = [&](int r) { return r != rank_ && peers_[static_cast<size_t>(r)].lost.empty(); };
  for (int r = 0; r < size(); ++r)
    if (other(r)) post_control(r, kLeaves, nullptr, 0);
  for (const double end = now() + kLeaveSeconds; now() < end; pause(1000)) {
    move();
    bool waits = false;
    for (int r = 0; r < size(); ++r) {
      const Peer& p = peers_[static_cast<size_t>(r)];
      waits = waits || (other(r) && (!p.leaving || !p.out.empty()));
    }
    if (!waits) return;
  }
}

void SocketTransport::abort(int code) {
  const auto value = static_cast<int32_t>(code);
  for (int r = 0; r < size(); ++r)
    if (r != rank_) post_control(r, kAborts, &value, sizeof value);
  for (const double end = now() + kAbortSeconds; now() < end; pause(1000)) {
    for (Peer& p : peers_) write_some(p);
    if (std::all_of(peers_.begin(), peers_.end(), [](const Peer& p) { return p.out.empty(); })) break;
  }
  std::_Exit(code);
}

MessageTransport::Channels SocketTransport::split(std::span<const int> ranks) {
  const uint32_t number = channels_ + 1;
  channels_ += 2;
  if (ranks.size() == 1) return {};
  const std::vector<int> list(ranks.begin(), ranks.end());
  return {std::make_unique<SocketChannel>(number, list), std::make_unique<SocketChannel>(number + 1, list)};
}

std::unique_ptr<MessageChannel> SocketTransport::split_machine() {
  return std::make_unique<SocketChannel>(++channels_, local_ranks_);
}

void SocketTransport::leave(int to, const Note& note) {
  GT_CHECK(to != rank_, "a note from rank ", to, " to itself");
  post_control(to, kNote, &note, sizeof note);
}

bool SocketTransport::next_note(int& from, Note& note) {
  if (notes_.empty()) return false;
  std::tie(from, note) = notes_.front();
  notes_.erase(notes_.begin());
  return true;
}

void SocketTransport::pause(int us) {
  pollfd any{events_, POLLIN, 0};
  const timespec limit{us / 1000000, us % 1000000 * 1000L};
  ppoll(&any, 1, &limit, nullptr);
}

void SocketTransport::wake(int to) { post_control(to, kWakes, nullptr, 0); }

void SocketTransport::advance() {
  move();
  for (int r = 0; lost_ && r < size(); ++r) require_alive(r);
}

void SocketTransport::require_alive(int rank) const {
  const Peer& p = peers_[static_cast<size_t>(rank)];
  if (p.lost.empty() || p.leaving) return;
  if (std::binary_search(local_ranks_.begin(), local_ranks_.end(), rank))
    throw RankDied(cat("rank ", rank, " has died: its connection ended (", p.lost, ")"), Exit::kInternal);
  fail(Exit::kIo, "the connection to rank ", rank, " ended (", p.lost,
       "): that rank has died, or its machine or network failed");
}

void SocketTransport::move() {
  std::array<epoll_event, 64> ready;
  const int n = epoll_wait(events_, ready.data(), static_cast<int>(ready.size()), 0);
  for (int i = 0; i < n; ++i) {
    const int rank = static_cast<int>(ready[static_cast<size_t>(i)].data.u32);
    Peer& p = peers_[static_cast<size_t>(rank)];
    if ((ready[static_cast<size_t>(i)].events & EPOLLOUT) != 0) write_some(p);
    if (p.lost.empty()) read_some(p, rank);
  }
}

void SocketTransport::post_send(int to, Header header, const std::byte* data, Request request) {
  Peer& p = peers_[static_cast<size_t>(to)];
  if (!p.lost.empty()) return;  // test() reports it
  if (p.shares_memory && header.bytes >= kLarge && put_in_memory(p, to, header, data)) {
    request.set->finish(request.index, header.bytes);
    request = {};
  }
  p.out.push_back({header, data, 0, {}, request, Fd()});
  if (!p.writes) write_some(p);
}

// Copies the payload to the peer's ring; false if it has to go through the socket.
bool SocketTransport::put_in_memory(Peer& p, int to, Header& header, const std::byte* data) {
  const int64_t bytes = std::clamp(kAhead * header.bytes, kLeastRing, kMostRing);
  if (p.to_peer.capacity() < bytes) {  // the receiver has copied what the last one holds before it sees the new one
    Fd descriptor;
    if (MessageRing ring = MessageRing::create(bytes, descriptor)) {
      p.to_peer = std::move(ring);
      post_control(to, kMemory, nullptr, 0, std::move(descriptor));
    }
  }
  const std::optional<uint64_t> at = p.to_peer ? p.to_peer.put(data, header.bytes) : std::nullopt;
  header.at = at.value_or(kFollows);
  return at.has_value();
}

void SocketTransport::post_control(int to, int32_t what, const void* data, size_t bytes, Fd descriptor) {
  Peer& p = peers_[static_cast<size_t>(to)];
  if (!p.lost.empty()) return;
  Outgoing o{{static_cast<int64_t>(bytes), 0, what}, nullptr, 0, {}, {}, std::move(descriptor)};
  const auto* from = static_cast<const std::byte*>(data);
  o.own.assign(from, from + bytes);
  p.out.push_back(std::move(o));
  if (!p.writes) write_some(p);
}

void SocketTransport::post_receive(int from, Header header, std::byte* to, Request request) {
  Peer& p = peers_[static_cast<size_t>(from)];
  const auto early = std::find_if(p.arrived.begin(), p.arrived.end(), [&](const Arrived& a) {
    return a.header.channel == header.channel && a.header.tag == header.tag;
  });
  if (early == p.arrived.end()) return p.posted.push_back({header, to, request});
  if (early->header.bytes == header.bytes && header.bytes > 0) std::memcpy(to, early->data.data(), early->data.size());
  request.set->finish(request.index, early->header.bytes);
  early->data.clear();
  spare_.push_back(std::move(early->data));
  p.arrived.erase(early);
}

// Its buffers are no longer valid. A message that has been sent in part has to be completed from a copy.
void SocketTransport::abandon(const SocketSet* set) {
  for (Peer& p : peers_) {
    std::erase_if(p.posted, [&](const Posted& r) { return r.request.set == set; });
    std::erase_if(p.out, [&](const Outgoing& o) { return o.request.set == set && o.done == 0; });
    for (Outgoing& o : p.out) {
      if (o.request.set != set) continue;
      o.own.assign(o.data, o.data + o.header.bytes);
      o.request = {};
    }
    if (p.in.request.set == set) p.in.request = {}, p.in.to = nullptr, p.in.dropped = true;
  }
}

void SocketTransport::lose(Peer& p, std::string why) {
  p.lost = std::move(why);
  lost_ = true;
  epoll_ctl(events_, EPOLL_CTL_DEL, p.fd, nullptr);
  p.out.clear();
}

void SocketTransport::write_some(Peer& p) {
  while (!p.out.empty() && p.lost.empty()) {
    Outgoing& o = p.out.front();
    const auto bytes = static_cast<size_t>(o.header.following()), total = sizeof(Header) + bytes;
    const std::byte* data = o.own.empty() ? o.data : o.own.data();
    iovec parts[2];
    int n = 0;
    if (o.done < sizeof(Header)) parts[n++] = {reinterpret_cast<char*>(&o.header) + o.done, sizeof(Header) - o.done};
    const size_t begun = o.done > sizeof(Header) ? o.done - sizeof(Header) : 0;
    if (bytes > begun) parts[n++] = {const_cast<std::byte*>(data) + begun, bytes - begun};
    msghdr message{};
    message.msg_iov = parts, message.msg_iovlen = static_cast<size_t>(n);
    AncillaryData ancillary{};
    if (o.descriptor && o.done == 0) attach(message, ancillary, o.descriptor.get());
    const ssize_t sent = sendmsg(p.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return watch(p, true);
    if (sent < 0) return lose(p, std::strerror(errno));
    o.done += static_cast<size_t>(sent);
    if (o.done < total) continue;
    if (o.request.set != nullptr) o.request.set->finish(o.request.index, o.header.bytes);
    p.out.erase(p.out.begin());
  }
  if (p.writes && p.lost.empty()) watch(p, false);
}

void SocketTransport::watch(Peer& p, bool writes) {
  if (p.writes == writes) return;
  p.writes = writes;
  epoll_event e{EPOLLIN | (writes ? static_cast<uint32_t>(EPOLLOUT) : 0u),
                {.u32 = static_cast<uint32_t>(&p - peers_.data())}};
  epoll_ctl(events_, EPOLL_CTL_MOD, p.fd, &e);
}

// Reads up to `bytes` bytes; returns whether all came. The end of the connection loses the peer.
bool SocketTransport::read_into(Peer& p, std::byte* to, size_t bytes) {
  for (size_t at = 0; at < bytes;) {
    const ssize_t n = recv(p.fd, to + at, bytes - at, MSG_DONTWAIT);
    if (n > 0) at += static_cast<size_t>(n), p.in.done += static_cast<size_t>(n);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return false;
    if (n <= 0) return lose(p, n == 0 ? "closed" : std::strerror(errno)), false;
  }
  return true;
}

// Reads the rest of a header, and the descriptor that comes with its first byte. Returns whether it is complete.
bool SocketTransport::read_header(Peer& p) {
  if (!p.shares_memory || p.in.done > 0)
    return read_into(p, reinterpret_cast<std::byte*>(&p.in.header) + p.in.done, sizeof(Header) - p.in.done);
  iovec part{&p.in.header, sizeof(Header)};
  AncillaryData ancillary{};
  msghdr message{};
  message.msg_iov = &part, message.msg_iovlen = 1;
  message.msg_control = ancillary.bytes, message.msg_controllen = sizeof ancillary.bytes;
  const ssize_t n = recvmsg(p.fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) return lose(p, n == 0 ? "closed" : std::strerror(errno)), false;
  p.in.descriptor = attached(message);
  p.in.done = static_cast<size_t>(n);
  return p.in.done == sizeof(Header) || read_header(p);
}

// Matches the frame whose header has arrived with a posted receive; false if it is none of ours.
bool SocketTransport::begin_frame(Peer& p) {
  Incoming& in = p.in;
  const Header& h = in.header;
  if (h.bytes < 0 || h.bytes > kMostBytes) return false;
  if (h.at != kFollows && (h.channel == 0 || p.from_peer.find(h.at, h.bytes) == nullptr)) return false;
  if (h.channel == 0 && h.tag == kMemory) {
    p.from_peer = MessageRing::open(in.descriptor);
    if (!p.from_peer) lose(p, cat("its memory for messages cannot be mapped: ", std::strerror(errno)));
    return p.from_peer && h.bytes == 0;
  }
  if (h.channel == 0)
    return (h.tag == kNote && h.bytes == sizeof(Note)) || ((h.tag == kLeaves || h.tag == kWakes) && h.bytes == 0) ||
           (h.tag == kAborts && h.bytes == sizeof(int32_t));
  const auto match = std::find_if(p.posted.begin(), p.posted.end(), [&](const Posted& r) {
    return r.header.channel == h.channel && r.header.tag == h.tag;
  });
  if (match == p.posted.end()) {
    if (!spare_.empty() && p.pending.capacity() == 0) std::swap(p.pending, spare_.back()), spare_.pop_back();
    return true;
  }
  in.matched = true;
  in.request = match->request;
  in.dropped = match->header.bytes != h.bytes;
  in.to = in.dropped ? nullptr : match->to;
  p.posted.erase(match);
  return true;
}

// Copies the payload from the ring to the posted buffer, or keeps it until one is posted.
void SocketTransport::take_from_memory(Peer& p) {
  const Header& h = p.in.header;
  const std::byte* data = p.from_peer.find(h.at, h.bytes);
  if (p.in.to != nullptr) {
    std::memcpy(p.in.to, data, static_cast<size_t>(h.bytes));
  } else if (!p.in.dropped) {
    p.pending.assign(data, data + h.bytes);
  }
  p.from_peer.free(h.at, h.bytes);
}

void SocketTransport::end_frame(Peer& p, int rank) {
  const Header h = p.in.header;
  const Incoming in = std::exchange(p.in, {});
  if (in.matched) {
    if (in.request.set != nullptr) in.request.set->finish(in.request.index, h.bytes);
  } else if (h.channel != 0) {
    const auto late = std::find_if(p.posted.begin(), p.posted.end(), [&](const Posted& r) {
      return r.header.channel == h.channel && r.header.tag == h.tag;
    });
    p.arrived.push_back({h, std::exchange(p.pending, {})});
    if (late == p.posted.end()) return;
    const Posted posted = *late;
    p.posted.erase(late);
    post_receive(rank, posted.header, posted.to, posted.request);
  } else if (h.tag == kLeaves) {
    p.leaving = true;
  } else if (h.tag == kNote) {
    Note note;
    std::memcpy(static_cast<void*>(&note), p.pending.data(), sizeof note);
    notes_.emplace_back(rank, note);
  } else if (h.tag == kAborts) {
    int32_t code = 0;
    std::memcpy(&code, p.pending.data(), sizeof code);
    if (code <= 0 || code > 255) code = static_cast<int>(Exit::kInternal);
    if (reports_abort_)
      std::fprintf(stderr,
                   "gpttrain: rank %d (%s pid %d): ends with exit code %d, because rank %d has failed; its message "
                   "has the reason\n",
                   rank_, host_name().c_str(), static_cast<int>(getpid()), code, rank);
    std::fflush(stderr);
    std::_Exit(code);
  }
  p.pending.clear();
}

void SocketTransport::read_some(Peer& p, int rank) {
  std::byte unused[4096];
  for (int frames = 0; frames < 16 && p.lost.empty();) {
    Incoming& in = p.in;
    if (in.done < sizeof(Header)) {
      if (!read_header(p)) return;
      if (!begin_frame(p)) return p.lost.empty() ? lose(p, "it sent no frame of this program") : void();
      if (in.header.at != kFollows) take_from_memory(p);
    }
    const auto bytes = static_cast<size_t>(in.header.following());
    while (in.done < sizeof(Header) + bytes) {
      const size_t at = in.done - sizeof(Header), left = bytes - at;
      if (in.to != nullptr) {
        if (!read_into(p, in.to + at, left)) return;
      } else if (in.dropped) {
        if (!read_into(p, unused, std::min(left, sizeof unused))) return;
      } else {  // grows with what arrives
        const size_t step = std::min(left, kStep);
        if (p.pending.size() < at + step) p.pending.resize(at + step);
        if (!read_into(p, p.pending.data() + at, step)) return;
      }
    }
    end_frame(p, rank);
    ++frames;
  }
}

}  // namespace gt
