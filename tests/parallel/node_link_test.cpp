// Stall monitors of several machines: their messages, authentication, and that the hub reports ranks that are late or
// lost on other machines.
#include "parallel/comm/watch/node_link.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <sstream>
#include <thread>

#include "kernels/core/rng.h"
#include "parallel/comm/watch/stall_monitor.h"
#include "tests/support/skip.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

constexpr int64_t kSecond = 1'000'000'000;

RankView rank_view(int rank) {
  RankView v;
  v.world_rank = rank;
  v.pid = 100 + rank;
  v.coordinates = cat("pp", rank, " dp0 tp0");
  v.phase = RunPhase::kStep;
  v.waits = true;
  v.waited_s = 11;
  v.limit_s = 10;
  v.wait_key = 7;
  v.wait_seq = 3;
  v.wait_call = {CommOp::kRecv, ReduceOp::kSum, DType::kF32, 12, 1, 5};
  GroupView g;
  g.key = 7;
  g.label = "pp group [0,1]";
  g.rank = rank;
  g.size = 2;
  g.posted = 3;
  g.last_start = 5 * kSecond;
  v.groups.push_back(g);
  return v;
}

// Polls both sides until `done`; false after 20 s.
template <class Tick, class Done>
bool within_20s(Tick tick, Done done) {
  for (int i = 0; i < 2000; ++i) {
    tick();
    if (done()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

// Sets the loopback device of this thread's network namespace up or down: a line that can be cut.
bool set_line(bool up) {
  const int fd = socket(AF_INET, SOCK_DGRAM, 0);
  ifreq r{};
  std::snprintf(r.ifr_name, sizeof r.ifr_name, "lo");
  r.ifr_flags = up ? IFF_UP : 0;
  const bool done = ioctl(fd, SIOCSIFFLAGS, &r) == 0;
  close(fd);
  return done;
}

int connect_to(const std::string& address) {
  std::istringstream in(address);
  std::string ip;
  int port = 0;
  in >> ip >> port;
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, ip.c_str(), &a.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  REQUIRE(connect(fd, reinterpret_cast<const sockaddr*>(&a), sizeof a) == 0);
  return fd;
}

// One machine with one rank, its monitor and the monitor's output.
struct Machine {
  BoardHead head;
  std::unique_ptr<RankPages[]> pages = std::make_unique<RankPages[]>(1);
  std::mutex mutex;
  std::string report;
  std::atomic<int> code{-1};
  std::unique_ptr<StallMonitor> monitor;
  CommBoard board() { return {&head, pages.get(), 1}; }
  std::string text() {
    const std::lock_guard lock(mutex);
    return report;
  }
  void watch(int rank, StallOptions o) {
    RankSlot& s = pages[0].rank;
    s.world_rank.store(rank);
    s.phase.store(RunPhase::kStep);
    s.pid.store(rank + 1);
    GroupSlot& g = pages[0].group[0];
    g.size.store(2), g.rank.store(static_cast<uint32_t>(rank)), g.posted.store(4), g.label.store("dp group [0,1]");
    g.key.store(9);
    o.tick_seconds = 0.02;
    o.print = [this](const std::string& t) {
      const std::lock_guard lock(mutex);
      report += t + "\n";
    };
    o.end = [this](int c, const std::string&) { code = c; };
    monitor = std::make_unique<StallMonitor>(board(), 0, o);
  }
  void wait_in_group() {
    RankSlot& s = pages[0].rank;
    s.warn_ns.store(2 * kSecond);  // by then they are connected
    s.wait_key.store(9), s.wait_seq.store(4);
    s.wait_call.store({CommOp::kAllReduce, ReduceOp::kSum, DType::kF32, 4, 0, 0});
    pages[0].group[0].posted.store(5);
    s.wait_start.store(steady_ns());
  }
};

}  // namespace

TEST_CASE("a report arrives unchanged, with times on the receiver's clock, and damaged ones are refused") {
  const NodeReport sent{"node2", "rank 1 died", {rank_view(1), rank_view(2)}};
  const std::string bytes = encode(sent, 8 * kSecond);
  const auto got = decode(bytes, 1000 * kSecond);
  REQUIRE(got);
  CHECK(got->host == "node2");
  CHECK(got->verdict == "rank 1 died");
  REQUIRE(got->ranks.size() == 2);
  const RankView &v = got->ranks[1], &w = sent.ranks[1];
  CHECK(who(v, "node1") == "rank 2 (node2 pid 102, pp2 dp0 tp0)");
  CHECK(v.wait_call == w.wait_call);
  CHECK((v.waits && v.waited_s == 11 && v.wait_key == 7 && v.wait_seq == 3 && v.phase == RunPhase::kStep));
  REQUIRE(v.groups.size() == 1);
  CHECK(v.groups[0].label == w.groups[0].label);
  CHECK(v.groups[0].posted == 3);
  CHECK(v.groups[0].last_start == 997 * kSecond);
  for (size_t n = 0; n < bytes.size(); ++n) CHECK_FALSE(decode(bytes.substr(0, n), 0));
  CHECK_FALSE(decode(bytes + "x", 0));
  CHECK_FALSE(decode(encode({"node2", "", {}}, 0), 0));  // no ranks
  int accepted = 0;
  for (uint64_t i = 0; i < 20000; ++i) {  // must neither crash nor accept impossible values
    std::string wrong = bytes;
    for (int k = 0; k < 3; ++k)
      wrong[splitmix64(i * 3 + static_cast<uint64_t>(k)) % wrong.size()] =
          static_cast<char>(splitmix64(i + 77) >> (8 * k));
    const auto r = decode(wrong, 0);
    accepted += r.has_value();
    for (const RankView& x : r ? r->ranks : std::vector<RankView>())
      CHECK(static_cast<int>(x.wait_call.op) < kNumCommOps);
  }
  CHECK(accepted > 0);
}

TEST_CASE("the hub accepts reports of authenticated peers and drops all others") {
  NodeHub hub("secret", "127.0.0.1");
  REQUIRE_FALSE(hub.address().empty());
  NodeLink link(hub.address(), "secret"), liar(hub.address(), "guess");
  std::vector<int> foreign;
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.0\r\n\r\n"), std::string(5000, '\0'), std::string(),
        std::string("\x40\0\0\0", 4) + std::string(64, 'a') + encode({"x", "", {rank_view(5)}}, 0)}) {
    foreign.push_back(connect_to(hub.address()));
    if (!bytes.empty()) REQUIRE(send(foreign.back(), bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0);
  }
  const auto tick = [&] {
    const int64_t now = steady_ns();
    hub.poll(now);
    link.report({"node2", "", {rank_view(1)}}, now);
    liar.report({"node9", "", {rank_view(9)}}, now);
  };
  CHECK(within_20s(tick, [&] { return link.heard() > 0; }));
  for (int i = 0; i < 100; ++i) tick();
  REQUIRE(hub.nodes().size() == 1);
  CHECK(hub.nodes().at(1).report.host == "node2");
  CHECK(hub.nodes().at(1).closed == 0);
  CHECK(liar.heard() == 0);
  CHECK_FALSE(link.ended());
  hub.end("rank 3 died");
  CHECK(within_20s(tick, [&] { return link.ended(); }));
  CHECK_FALSE(liar.ended());
  for (const int fd : foreign) close(fd);
}

TEST_CASE("a link accepts only a hub that authenticates with the secret") {
  NodeHub foreign("other", "127.0.0.1");
  NodeLink link(foreign.address(), "secret");
  for (int i = 0; i < 200; ++i) {
    const int64_t now = steady_ns();
    foreign.poll(now);
    foreign.end("stop");
    link.report({"node2", "", {rank_view(1)}}, now);
  }
  CHECK(link.heard() == 0);
  CHECK_FALSE(link.ended());
  CHECK(foreign.nodes().empty());
}

TEST_CASE("a late rank on another machine is named by the hub, and the run ends on both", "[R12]") {
  Machine here, there;
  const auto hub = std::make_shared<NodeHub>("s", "127.0.0.1");
  here.watch(0, {.abort_seconds = 2.5, .hub = hub});
  there.watch(
      1, {.abort_seconds = 2, .link = std::make_shared<NodeLink>(hub->address(), "s"), .hub_name = "rank 0 (here)"});
  here.wait_in_group();
  CHECK(within_20s([] {}, [&] { return here.code >= 0 && there.code >= 0; }));
  CHECK(here.code == 124);
  CHECK(there.code == 124);
  CHECK_THAT(here.text(), Contains("stalled: not arrived: rank 1\n  rank 1 (") && Contains("runs, in no collective"));
  CHECK_THAT(here.text(), Contains("hang: the run ends"));
  CHECK_THAT(here.text(), !Contains("other machines"));
  CHECK(there.text() == "");  // one message in total
}

TEST_CASE("a machine without heartbeat is reported with its ranks and ends its own processes", "[R12]") {
  SECTION("its process is gone") {
    Machine here;
    const auto hub = std::make_shared<NodeHub>("s", "127.0.0.1");
    auto link = std::make_unique<NodeLink>(hub->address(), "s");
    here.watch(0, {.hub = hub});
    const auto tick = [&] {
      if (link) link->report({"node2", "", {rank_view(1), rank_view(2)}}, steady_ns());
    };
    REQUIRE(within_20s(tick, [&] { return link->heard() > 0; }));
    link.reset();
    CHECK(within_20s(tick, [&] { return here.code >= 0; }));
    CHECK(here.code == 124);
    CHECK_THAT(
        here.text(),
        Contains("lost: ranks 1 (node2 pid 101, pp1 dp0 tp0), 2 (node2 pid 102, pp2 dp0 tp0): gone without a word"));
  }
  SECTION("it sends nothing") {
    Machine here;
    const auto hub = std::make_shared<NodeHub>("s", "127.0.0.1");
    NodeLink link(hub->address(), "s");
    here.watch(0, {.hub = hub, .lost_seconds = 0.5});
    REQUIRE(within_20s(
        [&] {
          link.report({"node2", "", {rank_view(1)}}, steady_ns());
        },
        [&] { return link.heard() > 0; }));
    CHECK(within_20s([] {}, [&] { return here.code >= 0; }));
    CHECK_THAT(here.text(), Contains("lost: no sign of life from rank 1 (node2 pid 101, pp1 dp0 tp0) for "));
  }
  SECTION("it sends nothing, but its kernel acknowledges what the hub sends: only processes are silent") {
    Machine here;
    const auto hub = std::make_shared<NodeHub>("s", "127.0.0.1");
    NodeLink link(hub->address(), "s");
    here.watch(0, {.hub = hub, .lost_seconds = 3, .unreachable_seconds = 0.2});
    REQUIRE(within_20s(
        [&] {
          link.report({"node2", "", {rank_view(1)}}, steady_ns());
        },
        [&] { return link.heard() > 0; }));
    CHECK(within_20s([] {}, [&] { return link.unreachable_s() == 0; }));  // once the last message is acknowledged
    std::this_thread::sleep_for(std::chrono::milliseconds(1700));
    CHECK(here.code == -1);
    CHECK(within_20s([] {}, [&] { return here.code >= 0; }));
    CHECK_THAT(here.text(), Contains("machine down or unreachable, or processes frozen"));
  }
  SECTION("the hub stops") {
    Machine there;
    NodeHub hub("s", "127.0.0.1");
    const auto link = std::make_shared<NodeLink>(hub.address(), "s");
    REQUIRE(within_20s(
        [&] {
          hub.poll(steady_ns());
          link->report({"there", "", {rank_view(1)}}, steady_ns());
        },
        [&] { return link->heard() > 0; }));
    there.watch(1, {.link = link, .hub_name = "rank 0 (node1)", .lost_seconds = -4.5});
    CHECK(within_20s([] {}, [&] { return there.code >= 0; }));
    CHECK(there.code == 124);
    CHECK_THAT(there.text(), Contains("lost: no sign of life from rank 0 (node1) for "));
  }
  SECTION("a rank that has ended well is not missing") {
    Machine here, there;
    const auto hub = std::make_shared<NodeHub>("s", "127.0.0.1");
    const auto link = std::make_shared<NodeLink>(hub->address(), "s");
    here.watch(0, {.hub = hub, .lost_seconds = 0.3});
    there.watch(1, {.link = link, .hub_name = "rank 0 (here)"});
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // time to connect
    there.monitor.reset();
    std::this_thread::sleep_for(std::chrono::seconds(1));
    CHECK(here.code == -1);
    CHECK(here.text() == "");
  }
}

TEST_CASE("a machine whose packets are lost is lost long before a frozen process of a reachable one", "[R12]") {
  bool isolated = false;
  std::string cut, frozen;
  double cut_s = 0;
  std::thread([&] {  // with a network of its own
    isolated = unshare(CLONE_NEWNET) == 0 && set_line(true);
    if (!isolated) return;
    const auto lose = [&](bool line) {
      Machine here;
      const auto hub = std::make_shared<NodeHub>("s", "127.0.0.1");
      NodeLink link(hub->address(), "s");
      here.watch(0, {.hub = hub, .lost_seconds = line ? 60. : 8.});
      within_20s([&] { link.report({"node2", "", {rank_view(1)}}, steady_ns()); }, [&] { return link.heard() > 0; });
      const int64_t begin = steady_ns();
      if (line) set_line(false);
      within_20s([] {}, [&] { return here.code >= 0; });
      cut_s = static_cast<double>(steady_ns() - begin) * 1e-9;
      return here.text();
    };
    frozen = lose(false);
    cut = lose(true);
  })
      .join();
  if (!isolated) GT_SKIP("a network namespace needs root");
  CHECK_THAT(frozen, Contains("lost: no sign of life from rank 1 (node2 pid 101, pp1 dp0 tp0) for ") &&
                         Contains("or processes frozen"));
  CHECK_THAT(cut, Contains("lost: no sign of life from rank 1 (node2 pid 101, pp1 dp0 tp0) for ") &&
                      Contains("machine down or unreachable"));
  CHECK(cut_s > 2);  // a line that fails for a moment is none that is lost
}
