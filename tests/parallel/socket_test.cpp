// Ranks connected by sockets: the communication suite over Unix sockets and over TCP, and how they find each other.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>

#include "kernels/core/hash/sha256.h"
#include "parallel/comm/messages/socket_address.h"
#include "parallel/comm/messages/socket_group.h"
#include "parallel/comm/messages/socket_transport.h"
#include "parallel/comm/watch/node_link.h"
#include "tests/parallel/comm_suite.h"
#include "tests/support/skip.h"
#include "tests/support/test.h"

using namespace gt;
using Catch::Contains;

namespace {

// A listening socket on loopback.
struct Listener {
  explicit Listener(int port = 0) {
    a.parse("127.0.0.1", port);
    REQUIRE((bind(fd, a.get(), a.size) == 0 && listen(fd, 16) == 0 && getsockname(fd, a.get(), &a.size) == 0));
  }
  ~Listener() { close(fd); }
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  SocketAddress a;
};

int free_port() { return Listener().a.port(); }

// Jobs of `world` ranks, `here` of them per machine.
std::vector<SocketJob> jobs(int world, int here, std::chrono::milliseconds limit = std::chrono::seconds(60)) {
  std::vector<SocketJob> out;
  const int port = free_port();
  for (int r = 0; r < world; ++r)
    out.push_back({.rank = r,
                   .world = world,
                   .local_rank = r % here,
                   .local_world = here,
                   .host = "127.0.0.1",
                   .port = port,
                   .id = "test",
                   .secret = "a secret",
                   .limit = limit});
  return out;
}

std::vector<std::string> run(const std::vector<SocketJob>& all, const std::function<void(GroupFactory&)>& body,
                             bool node_memory = true) {
  std::vector<std::string> errors(all.size());
  std::vector<std::thread> team;
  for (const SocketJob& job : all)
    team.emplace_back([&] {
      try {
        SocketFactory factory(job, std::chrono::seconds(60), node_memory);
        body(factory);
      } catch (const std::exception& e) { errors[static_cast<size_t>(job.rank)] = e.what(); }
    });
  for (std::thread& t : team) t.join();
  return errors;
}

void require_no_error(const std::vector<std::string>& errors) {
  for (const std::string& e : errors) REQUIRE(e == "");
}

std::vector<int> everybody(GroupFactory& f) {
  std::vector<int> all(static_cast<size_t>(f.world_size()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// All ranks on one machine, each on its own, and two on each.
suite::OnRanks on_ranks(int here, bool node_memory) {
  return [here, node_memory](int ranks, const std::function<void(GroupFactory&)>& body) {
    if (here > 0 && ranks % here != 0) return;
    require_no_error(run(jobs(ranks, here > 0 ? here : ranks), body, node_memory));
  };
}

}  // namespace

TEST_CASE("sockets: the communication suite on one machine, with shared memory and without") {
  suite::everything(on_ranks(0, true));
  suite::everything(on_ranks(0, false));
}

TEST_CASE("sockets: the communication suite over TCP, also with two ranks on each machine") {
  suite::everything(on_ranks(1, true));
  suite::everything(on_ranks(2, true));
}

TEST_CASE("sockets: 500 random operations are bitwise identical to threads") {
  CHECK(suite::random_operations_agree_with_threads(on_ranks(0, true)));
  CHECK(suite::random_operations_agree_with_threads(on_ranks(0, false)));
  CHECK(suite::random_operations_agree_with_threads(on_ranks(2, true)));
}

TEST_CASE("sockets: messages between ranks of a machine leave whole while the receiver does not call") {
  constexpr size_t kMany = 3, kFloats = 2 << 20;  // messages of 8 MB
  std::vector<float> values(kMany * kFloats), got(values.size());
  std::iota(values.begin(), values.end(), 0.f);
  std::atomic<bool> sent{false}, early{false};
  require_no_error(run(jobs(2, 2), [&](GroupFactory& f) {
    const auto group = f.make(everybody(f));
    const auto tensor = [](std::vector<float>& v, size_t i) {
      return Tensor{reinterpret_cast<std::byte*>(v.data() + i * kFloats), {int64_t{kFloats}}, DType::kF32, Device{}};
    };
    if (f.world_rank() == 0) {
      for (size_t i = 0; i < kMany; ++i) group->send(tensor(values, i), 1, 0, {}).wait({});
      sent = true;
      return;
    }
    for (int i = 0; i < 10'000 && !sent; ++i) usleep(1000);
    early = sent.load();
    for (size_t i = 0; i < kMany; ++i) group->recv(tensor(got, i), 0, 0, {}).wait({});
  }));
  CHECK(early);
  CHECK(got == values);
}

TEST_CASE("sockets: messages of all sizes between ranks of a machine exceed what it passes in memory") {
  constexpr int kMany = 60;
  const auto floats = [](int i) { return i % 7 == 0 ? int64_t{1} << 20 : i % 3 == 0 ? 10 : 16'000 + 5000 * i; };
  require_no_error(run(jobs(2, 2), [&](GroupFactory& f) {
    const auto g = f.make(everybody(f));
    const int peer = 1 - g->rank();
    std::vector<suite::Block> out, in;
    std::vector<Work> works;
    for (int i = 0; i < kMany; ++i) {
      out.push_back(suite::make_input(floats(i), DType::kF32, static_cast<uint64_t>(i), g->rank()));
      in.emplace_back(floats(i), DType::kF32);
    }
    for (int i = 0; i < kMany / 2; ++i) works.push_back(g->recv(in[static_cast<size_t>(i)].tensor, peer, i % 5, {}));
    for (int i = 0; i < kMany; ++i) works.push_back(g->send(out[static_cast<size_t>(i)].tensor, peer, i % 5, {}));
    for (int i = kMany / 2; i < kMany; ++i)
      works.push_back(g->recv(in[static_cast<size_t>(i)].tensor, peer, i % 5, {}));
    for (Work& w : works) w.wait({});
    for (int i = 0; i < kMany; ++i) {
      const suite::Block sent = suite::make_input(floats(i), DType::kF32, static_cast<uint64_t>(i), peer);
      const Tensor& got = in[static_cast<size_t>(i)].tensor;
      GT_CHECK(std::memcmp(got.data, sent.tensor.data, static_cast<size_t>(got.bytes())) == 0, "message ", i);
    }
  }));
}

TEST_CASE("sockets: ranks that a launcher puts on a machine are local to each other") {
  std::atomic<int> wrong{0};
  require_no_error(run(jobs(4, 2), [&](GroupFactory& f) {
    if (f.local_size() != 2 || f.local_rank() != f.world_rank() % 2 || f.backend() != "socket") ++wrong;
  }));
  CHECK(wrong == 0);
}

TEST_CASE("sockets: notes between ranks keep their order and are matched by group and tag") {
  std::atomic<int> taken{0};
  require_no_error(run(jobs(3, 1), [&](GroupFactory& f) {
    auto& side = dynamic_cast<SideChannel&>(f);
    side.open_notes();
    const auto note = [](uint64_t group, uint64_t tag, char c) {
      Note n{.group = group, .tag = tag};
      n.text[0] = c;
      return n;
    };
    for (int to = 0; to < 3; ++to)
      if (to != f.world_rank())
        for (const char c : {'a', 'b'})
          for (const uint64_t tag : {1, 2}) side.leave(to, note(7, tag, static_cast<char>(c + f.world_rank())));
    for (int from = 0; from < 3; ++from)
      for (const char c : {'a', 'b'})
        for (const uint64_t tag : {2, 1}) {
          if (from == f.world_rank()) continue;
          Note n = note(7, tag, ' ');
          while (!side.take(from, n)) usleep(100);
          GT_CHECK(n.text[0] == static_cast<char>(c + from), "note ", tag, " of rank ", from);
          ++taken;
        }
    Note other = note(8, 1, ' ');
    GT_CHECK(!side.take((f.world_rank() + 1) % 3, other));
  }));
  CHECK(taken == 24);
}

TEST_CASE("sockets: messages in flight both ways at once exceed the buffers of the sockets") {
  require_no_error(run(
      jobs(2, 1),
      [](GroupFactory& f) {
        const auto g = f.make(everybody(f));
        constexpr int64_t kMany = 6 << 20;
        suite::Block out = suite::make_input(kMany, DType::kF32, 1, g->rank()), in(kMany, DType::kF32);
        const suite::Block peer_input = suite::make_input(kMany, DType::kF32, 1, 1 - g->rank());
        Work send = g->send(out.tensor, 1 - g->rank(), 3, {}), recv = g->recv(in.tensor, 1 - g->rank(), 3, {});
        recv.wait({}), send.wait({});
        GT_CHECK(std::memcmp(in.tensor.data, peer_input.tensor.data, static_cast<size_t>(in.tensor.bytes())) == 0);
      },
      false));
}

TEST_CASE("sockets: parts of an all-to-all that differ are an error of the ranks that disagree") {
  for (const bool node_memory : {true, false}) {
    std::string found[3];
    require_no_error(run(
        jobs(3, 3), [&](GroupFactory& f) { found[f.world_rank()] = suite::parts_that_differ(f); }, node_memory));
    CHECK_THAT(found[1], Contains(node_memory ? "rank 0 sends 5 elements to rank 1, which expects 6"
                                              : "expected 24 bytes from rank 0, which sent 20"));
    CHECK(found[0] == (node_memory ? found[1] : ""));
    CHECK(found[2] == "");
  }
}

TEST_CASE("sockets: a message of another size than expected names the call and the sender") {
  for (const auto& [sent, expected] : {std::pair(4, 9), {9, 4}}) {
    const auto errors = run(jobs(2, 2), [&](GroupFactory& f) {
      auto g = f.make(everybody(f));
      g->set_label("pp group of the test");
      std::vector<float> values(9, 5);
      const auto x = [&](int64_t n) {
        return Tensor{reinterpret_cast<std::byte*>(values.data()), {n}, DType::kF32, {}};
      };
      if (g->rank() == 0) {
        usleep(100000);  // the receive is posted before the message comes
        g->send(x(sent), 1, 2, {}).wait({});
        return;
      }
      std::fill(values.begin(), values.end(), 7.f);
      try {
        g->recv(x(expected), 0, 2, {}).wait({});
      } catch (const Error&) {
        GT_CHECK(values.back() == 7, "bytes behind the buffer were overwritten");
        throw;
      }
    });
    CHECK(errors[0] == "");
    CHECK_THAT(errors[1], Contains("pp group of the test") &&
                              Contains(cat("recv(f32 x ", expected, ", rank 0, tag 2)")) &&
                              Contains(cat("expected ", 4 * expected, " bytes from rank 0, which sent ", 4 * sent)));
  }
}

TEST_CASE("sockets: a rank that dies is named by those that wait") {
  const auto errors = run(jobs(3, 1), [](GroupFactory& f) {
    auto g = f.make(everybody(f));
    if (g->rank() == 2) throw Error("this rank fails");
    suite::Block x(5000, DType::kF32);
    g->all_reduce(x.tensor, ReduceOp::kSum, {}).wait({});
  });
  CHECK(errors[2] == "this rank fails");
  for (const int r : {0, 1}) CHECK_THAT(errors[static_cast<size_t>(r)], Contains("connection to rank "));
  CHECK_THAT(errors[0] + errors[1], Contains("connection to rank 2 ended"));
}

TEST_CASE("sockets: a rank of this machine whose death a send notices first has died, and has not left") {
  std::atomic<bool> gone = false;
  const std::vector<SocketJob> all = jobs(2, 2);
  std::thread dies([&] {
    try {
      const SocketTransport transport(all[1], false);
      throw Error("this rank fails");
    } catch (const Error&) { gone = true; }
  });
  SocketTransport transport(all[0], false);
  dies.join();
  REQUIRE(gone);
  const auto channels = transport.split(std::vector<int>{0, 1});
  const auto set = transport.make_set();
  set->use(*channels.collectives);
  std::byte data[8] = {};
  set->send(data, sizeof data, 1, 0);
  CHECK_THROWS_AS(set->test(), RankDied);
}

namespace {

// Connects each of three ranks on a thread of its own. Returns "CODE MESSAGE" by rank; "" without an error.
std::vector<std::string> errors_of(const std::vector<SocketJob>& jobs) {
  std::vector<std::string> errors(3);
  std::vector<std::thread> team;
  for (const SocketJob& job : jobs)
    team.emplace_back([&] {
      try {
        connect_ranks(job);
      } catch (const Error& e) {
        errors[static_cast<size_t>(job.rank)] = cat(static_cast<int>(e.code()), ' ', e.what());
      }
    });
  for (std::thread& t : team) t.join();
  return errors;
}

}  // namespace

TEST_CASE("sockets: a rank that never comes is named after the time limit") {
  for (const int here : {3, 1}) {
    std::vector<SocketJob> all = jobs(3, here, std::chrono::milliseconds(600));
    all.erase(all.begin() + 1);
    const std::vector<std::string> errors = errors_of(all);
    CHECK_THAT(errors[0], Contains("74 ranks [1] of 3 did not connect to rank 0") && Contains("within 0.6 s"));
    CHECK_THAT(errors[2], Contains("74 rank 0 ended before all ranks had connected"));
  }
}

TEST_CASE("sockets: a stop signal ends the wait for a rank that never comes") {
  for (const int here : {3, 1}) {
    std::vector<SocketJob> all = jobs(3, here);
    all.erase(all.begin() + 1);
    for (SocketJob& job : all) job.stopped = [] { return true; };
    const std::vector<std::string> errors = errors_of(all);
    CHECK_THAT(errors[0], Contains("75 stopped while ranks connected"));
    CHECK_THAT(errors[2], Contains("75 stopped while ranks connected") || Contains("74 rank 0 ended"));
  }
}

TEST_CASE("sockets: another secret or world size is refused with the reason") {
  std::vector<SocketJob> all = jobs(3, 1, std::chrono::milliseconds(1500));
  all[1].secret = "another";
  all[2].world = 4;
  const std::vector<std::string> errors = errors_of(all);
  CHECK_THAT(errors[0], Contains("74 ranks [1,2] of 3") && Contains("had another job secret"));
  CHECK_THAT(errors[1], Contains("2 rank 0 at 127.0.0.1 port ") && Contains("its job secret differs"));
  CHECK_THAT(errors[2], Contains("2 rank 0 at ") && Contains("WORLD_SIZE is 3 on rank 0"));
}

// A program at rank 0's port greets, accepts any proof and answers with a wrong one.
TEST_CASE("sockets: a rank does not join a rank 0 that lacks the secret") {
  std::vector<SocketJob> all = jobs(2, 1, std::chrono::milliseconds(600));
  Listener first(all[0].port);
  std::atomic<int> answered{0};
  std::thread impostor([&] {
    for (int fd; (fd = accept(first.fd, nullptr, nullptr)) >= 0; close(fd)) {
      const std::string greeting = "gtrank1\n" + std::string(32, 'n'), rest(64 + 2 * 64, 'a');
      std::string hello(64 + 32 + 2 * 8 + 64, ' ');
      send(fd, greeting.data(), greeting.size(), MSG_NOSIGNAL);
      if (recv(fd, hello.data(), hello.size(), MSG_WAITALL) != static_cast<ssize_t>(hello.size())) continue;
      send(fd, rest.data(), rest.size(), MSG_NOSIGNAL);
      ++answered;
    }
  });
  std::string error;
  try {
    connect_ranks(all[1]);
  } catch (const Error& e) { error = cat(static_cast<int>(e.code()), ' ', e.what()); }
  shutdown(first.fd, SHUT_RDWR);
  impostor.join();
  CHECK_THAT(error, Catch::StartsWith("74 "));
  CHECK(answered > 0);
}

TEST_CASE("sockets: ranks on several machines need a secret") {
  std::vector<SocketJob> all = jobs(2, 1);
  all[0].secret = "";
  CHECK_THROWS_WITH(connect_ranks(all[0]), Contains("GPTTRAIN_JOB_SECRET") && Contains("--rdzv-id"));
}

TEST_CASE("sockets: a port in use is an error and the next free one of several is taken") {
  std::vector<SocketJob> all = jobs(2, 1);
  const Listener other(all[0].port);
  CHECK_THROWS_WITH(connect_ranks(all[0]), Contains(cat("cannot listen at port ", all[0].port)) && Contains("in use") &&
                                               Contains("MASTER_PORT"));
  for (SocketJob& job : all) job.ports = 8;
  std::atomic<int> sum{0};
  require_no_error(run(all, [&](GroupFactory& f) { sum += f.world_rank(); }));
  CHECK(sum == 1);
}

TEST_CASE("sockets: one machine runs one rank of a job and port, over no network") {
  std::vector<SocketJob> all = jobs(2, 2, std::chrono::milliseconds(300));
  const Listener other(all[0].port);  // no port of ours
  require_no_error(run(all, [](GroupFactory& f) { f.make(everybody(f))->barrier(); }));
  std::string second;
  std::thread first([&] { CHECK_THROWS_AS(connect_ranks(all[1]), Error); });
  usleep(100000);
  try {
    connect_ranks(all[1]);
  } catch (const Error& e) { second = e.what(); }
  first.join();
  CHECK_THAT(second, Contains("runs on ") && Contains("already") && Contains("MASTER_PORT"));
}

TEST_CASE("sockets: foreign connections neither delay the ranks nor get an answer to garbage") {
  std::vector<SocketJob> all = jobs(2, 1);
  std::atomic<bool> done{false};
  std::string answer;
  std::thread foreign([&] {
    SocketAddress a;
    a.parse("127.0.0.1", all[0].port);
    std::vector<int> silent;
    while (!done && silent.size() < 100) {
      const int fd = socket(AF_INET, SOCK_STREAM, 0);
      if (connect(fd, a.get(), a.size) != 0) {
        close(fd);
        usleep(1000);
        continue;
      }
      silent.push_back(fd);
      if (silent.size() != 1) continue;
      const std::string garbage(4096, 'x');
      char bytes[256];
      send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL);
      for (ssize_t n; answer.size() < 200 && (n = recv(fd, bytes, sizeof bytes, 0)) > 0;)
        answer.append(bytes, static_cast<size_t>(n));
    }
    for (const int fd : silent) close(fd);
  });
  std::thread late([&] {
    usleep(300000);
    require_no_error(run({all[1]}, [](GroupFactory& f) { f.make(everybody(f))->barrier(); }));
  });
  const auto errors = run({all[0]}, [](GroupFactory& f) { f.make(everybody(f))->barrier(); });
  done = true;
  late.join(), foreign.join();
  CHECK(errors[0] == "");
  CHECK(answer.size() < 40 + 65);  // the greeting and one refusal
}

TEST_CASE("sockets: a job secret that can be guessed is refused, except at a loopback address") {
  std::vector<SocketJob> all = jobs(2, 1, std::chrono::milliseconds(300));
  all[0].host = "node.invalid";
  for (const char* weak : {"1", "4711", "fifteen letters", "12345678901234567890"}) {
    all[0].secret = weak;
    CHECK_THROWS_WITH(connect_ranks(all[0]), Contains("can be guessed") && Contains("GPTTRAIN_JOB_SECRET"));
  }
  all[0].secret = "sixteen letters!";
  CHECK_THROWS_WITH(connect_ranks(all[0]), Contains("did not connect"));
  CHECK(is_loopback_name("127.3.2.1"));
  CHECK(is_loopback_name("::1"));
  CHECK(is_loopback_name("localhost"));
  CHECK_FALSE(is_loopback_name("10.0.0.1"));
  CHECK_FALSE(is_loopback_name("node1"));
}

TEST_CASE("sockets: a job whose ranks meet at a loopback address listens there only") {
  for (const std::string host : {"127.0.0.1", "::1", "localhost"}) {
    std::vector<SocketJob> all = jobs(3, 1);
    if (host == "::1") {
      const int fd = socket(AF_INET6, SOCK_STREAM, 0);
      SocketAddress a;
      a.parse("::1", 0);
      const bool six = fd >= 0 && bind(fd, a.get(), a.size) == 0;
      if (fd >= 0) close(fd);
      if (!six) continue;  // no IPv6 here
    }
    for (SocketJob& job : all) job.host = host;
    all[0].limit = std::chrono::milliseconds(600);
    std::thread alone([&] { CHECK_THROWS_WITH(connect_ranks(all[0]), Contains("did not connect")); });
    usleep(200000);
    for (const std::string& ip : interface_addresses("")) {
      SocketAddress a;
      if (!a.parse(ip, all[0].port)) continue;
      const int fd = socket(a.storage.ss_family, SOCK_STREAM, 0);
      INFO(host << " at " << ip);
      CHECK(connect(fd, a.get(), a.size) != 0);
      close(fd);
    }
    alone.join();
    all = jobs(3, 1);
    for (SocketJob& job : all) job.host = host;
    require_no_error(run(all, [](GroupFactory& f) { f.make(everybody(f))->barrier(); }));
  }
}

TEST_CASE("sockets: another user's claim to a name of the job's sockets neither stops it nor accuses the wrong one") {
  if (geteuid() != 0) return report_partly_skipped("sockets of another user: only root can make them");
  std::vector<SocketJob> all = jobs(2, 2, std::chrono::milliseconds(3000));
  const auto claim = [&](int names) {
    int ready[2];
    REQUIRE(pipe(ready) == 0);
    const pid_t child = fork();
    if (child == 0) {
      const SocketJob& j = all[0];
      const std::string key = cat(j.secret, ' ', j.id, ' ', j.host, ' ', j.port);
      const std::string name = cat("gpttrain-", sha256_hex(cat(key, ' ', geteuid())).substr(0, 32), "-0");
      if (setuid(12345) != 0) _exit(1);
      for (int k = 0; k < names; ++k) {
        sockaddr_un a{};
        a.sun_family = AF_UNIX;
        const std::string mine = name + (k > 0 ? cat('.', k) : std::string());
        std::memcpy(a.sun_path + 1, mine.data(), mine.size());
        const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + mine.size());
        if (bind(fd, reinterpret_cast<const sockaddr*>(&a), size) != 0 || listen(fd, 16) != 0) _exit(1);
      }
      if (write(ready[1], "x", 1) != 1) _exit(1);
      for (;;) pause();
    }
    char byte = 0;
    close(ready[1]);
    REQUIRE(read(ready[0], &byte, 1) == 1);
    close(ready[0]);
    return child;
  };
  const auto end = [](pid_t child) { kill(child, SIGKILL), waitpid(child, nullptr, 0); };
  const pid_t one = claim(1);
  const auto errors = run(all, [](GroupFactory& f) { f.make(everybody(f))->barrier(); });
  end(one);
  require_no_error(errors);
  const pid_t several = claim(4);
  std::string error;
  try {
    connect_ranks(all[0]);
  } catch (const Error& e) { error = e.what(); }
  end(several);
  CHECK_THAT(error, Contains("12345") && Contains("GPTTRAIN_JOB_SECRET") && !Contains("already"));
}

TEST_CASE("sockets: a rank that another one ends prints why, unless a common parent does") {
  for (const bool reports : {true, false}) {
    std::vector<SocketJob> all = jobs(2, 2);
    for (SocketJob& job : all) job.reports_abort = reports;
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    std::vector<pid_t> ranks;
    for (const SocketJob& job : all) {
      ranks.push_back(fork());
      if (ranks.back() != 0) continue;
      dup2(ends[1], STDERR_FILENO);
      SocketFactory factory(job, std::chrono::seconds(60), false);
      const auto group = factory.make(everybody(factory));
      if (job.rank == 0) factory.abort(static_cast<int>(Exit::kIo));
      group->barrier();
      _exit(0);
    }
    close(ends[1]);
    std::string out;
    char bytes[512];
    for (ssize_t n; (n = read(ends[0], bytes, sizeof bytes)) > 0;) out.append(bytes, static_cast<size_t>(n));
    close(ends[0]);
    for (const pid_t rank : ranks) {
      int status = 0;
      waitpid(rank, &status, 0);
      CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 74));
    }
    INFO(out);
    CHECK((out.find("gpttrain: rank 1 (") == 0) == reports);
    CHECK((out.find("ends with exit code 74, because rank 0 has failed; its message has the reason\n") !=
           std::string::npos) == reports);
    if (!reports) CHECK(out.empty());
  }
}
