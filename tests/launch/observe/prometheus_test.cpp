// log.prometheus and log.csv: the text format, requests of any kind over a socket, the rows of a run.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <sstream>
#include <thread>
#include <vector>

#include "launch/config/values/endpoint.h"
#include "launch/observe/sinks/log_jsonl.h"
#include "launch/observe/sinks/prometheus_sink.h"
#include "tests/launch/process.h"
#include "tests/support/test.h"

using namespace gt;

namespace {

// Sends bytes and returns the answer until the connection ends.
std::string request(int port, const std::string& bytes) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET, at.sin_port = htons(static_cast<uint16_t>(port)),
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0);
  std::string out;
  char buffer[4096];
  if (::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) >= 0)
    for (ssize_t n = 0; (n = ::recv(fd, buffer, sizeof buffer, 0)) > 0;) out.append(buffer, static_cast<size_t>(n));
  ::close(fd);
  return out;
}

StartInfo start_info() {
  StartInfo info;
  info.run_dir = "runs/a\"b";
  info.total_steps = 100;
  return info;
}

}  // namespace

TEST_CASE("addresses of log.prometheus are numeric and of this machine unless given") {
  CHECK(parse_endpoint("9400").address == "127.0.0.1");
  CHECK(parse_endpoint("9400").port == 9400);
  CHECK(parse_endpoint("localhost:1").address == "127.0.0.1");
  CHECK(parse_endpoint("0.0.0.0:65535").address == "0.0.0.0");
  CHECK(parse_endpoint("[::1]:9400").address == "::1");
  for (const char* bad : {"", "0", "65536", "x", "9400x", ":9400", "host.example:9400", "1.2.3:9400", "::1:x"}) {
    INFO(bad);
    CHECK_THROWS_WITH(parse_endpoint(bad), Catch::Contains("expected PORT or ADDRESS:PORT"));
  }
  TempDir dir;
  const Outcome r = gpttrain("--data.train mock --log.prometheus my-host:80 --dry-run", dir.path());
  CHECK(r.code == 2);
  CHECK(r.prints("log.prometheus: expected PORT or ADDRESS:PORT"));
}

TEST_CASE("metrics have help and type and a label with the run's name") {
  PrometheusValues v;
  v.run = "a\"b\\c\nd";
  CHECK(prometheus_text(v).find("gpttrain_loss{") == std::string::npos);  // before the first step
  v.step.step = 7, v.step.loss = std::nan(""), v.step.tokens = 1234567890123;
  const std::string text = prometheus_text(v);
  CHECK(text.find("# HELP gpttrain_loss Training loss of the last step.\n# TYPE gpttrain_loss gauge\n"
                  "gpttrain_loss{run=\"a\\\"b\\\\c\\nd\"} NaN\n") != std::string::npos);
  CHECK(text.find("# TYPE gpttrain_tokens_total counter\n") != std::string::npos);
  CHECK(text.find("} 1234567890123\n") != std::string::npos);
  CHECK(text.find("mfu_ratio") == std::string::npos);  // unknown
}

TEST_CASE("the port answers one bounded request at a time and closes with the run") {
  const int port = free_port();
  {
    PrometheusSink sink(parse_endpoint(std::to_string(port)));
    sink.start(start_info());
    StepRecord r;
    r.step = 3, r.loss = 4.25;
    sink.step(r);
    const std::string good = request(port, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK(good.rfind("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4", 0) == 0);
    CHECK(good.find("gpttrain_loss{run=\"a\\\"b\"} 4.25\n") != std::string::npos);
    const size_t length = good.find("Content-Length: "), body = good.find("\r\n\r\n") + 4;
    CHECK(std::stoul(good.substr(length + 16)) == good.size() - body);
    CHECK(request(port, "GET / HTTP/1.1\r\n\r\n").rfind("HTTP/1.1 404", 0) == 0);
    CHECK(request(port, "POST /metrics HTTP/1.1\r\n\r\n").rfind("HTTP/1.1 405", 0) == 0);
    CHECK(request(port, "nonsense\r\n\r\n").rfind("HTTP/1.1 400", 0) == 0);
    CHECK(request(port, std::string(100000, 'x')).empty());     // too long: closed without an answer
    CHECK(request(port, "GET /metrics HTTP/1.1\r\n").empty());  // never finished: closed at the deadline
    CHECK(request(port, "GET /metrics HTTP/1.0\r\n\r\n").rfind("HTTP/1.1 200", 0) == 0);
    PrometheusSink second(parse_endpoint(std::to_string(port)));
    CHECK_THROWS_WITH(second.start(start_info()), Catch::Contains("127.0.0.1:" + std::to_string(port)));
  }
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET, at.sin_port = htons(static_cast<uint16_t>(port)),
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(::connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0);
  ::close(fd);
}

TEST_CASE("metrics.csv has a row for each step under a fixed header also after a resume") {
  TempDir dir;
  const std::string tiny =
      "--model.layers 1 --model.hidden 16 --model.heads 2 --model.vocab 64 --model.seq 16 --train.micro_batch 1 "
      "--train.global_batch 2 --data.train mock --device.kind cpu --device.threads 1 --log.name r --log.csv "
      "--checkpoint.every 2 ";
  must(tiny + "--train.steps 2", dir);
  must(tiny + "--train.steps 4", dir);
  std::istringstream file(read_file(dir / "runs/r/metrics.csv"));
  std::string line;
  std::getline(file, line);
  CHECK(line + "\n" == csv_header());
  CHECK(line.rfind("time,step,tokens,samples,seq,epoch,skipped,slowest_rank,peak_bytes,loss,grad_norm,lr,", 0) == 0);
  const auto columns = std::count(line.begin(), line.end(), ',');
  const std::vector<double> losses = logged(dir / "runs/r", "loss");
  REQUIRE(losses.size() == 4);
  for (size_t step = 1; step <= 4; ++step) {
    REQUIRE(std::getline(file, line));
    CHECK(std::count(line.begin(), line.end(), ',') == columns);
    std::vector<std::string> cells(1);
    for (const char c : line)
      if (c == ',')
        cells.emplace_back();
      else
        cells.back() += c;
    CHECK(cells[1] == std::to_string(step));
    CHECK(std::stod(cells[9]) == Approx(losses[step - 1]));
  }
  CHECK_FALSE(std::getline(file, line));
}

TEST_CASE("silent clients of the metrics port do not delay the others") {
  const int port = free_port();
  PrometheusSink sink(parse_endpoint(std::to_string(port)));
  sink.start(start_info());
  std::vector<int> silent;
  for (size_t k = 0; k < PrometheusSink::kMostClients + 8; ++k) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET, at.sin_port = htons(static_cast<uint16_t>(port)),
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0);
    if (k % 2 == 0) REQUIRE(::send(fd, "GET /me", 7, MSG_NOSIGNAL) == 7);
    silent.push_back(fd);
    if (k % 8 != 0) continue;
    const auto begin = std::chrono::steady_clock::now();
    CHECK(request(port, "GET /metrics HTTP/1.1\r\n\r\n").rfind("HTTP/1.1 200", 0) == 0);
    // One after the other they would take kMostSeconds each.
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(2 * PrometheusSink::kMostSeconds));
  }
  for (const int fd : silent) ::close(fd);
}

TEST_CASE("a taken port of log.prometheus ends a run before its first step, and no supervisor restarts it") {
  const int port = free_port();
  PrometheusSink other(parse_endpoint(std::to_string(port)));
  other.start(start_info());
  const std::string tiny =
      "--model.layers 1 --model.hidden 16 --model.heads 2 --model.vocab 64 --model.seq 16 --train.micro_batch 1 "
      "--train.global_batch 2 --data.train mock --device.kind cpu --device.threads 1 --train.steps 3 "
      "--log.prometheus " +
      std::to_string(port);
  for (const std::string way : {"", " --dp 2", " --launch.max_restarts 3"}) {
    TempDir dir;
    const Outcome r = gpttrain(tiny + way + " --log.name r", dir.path());
    INFO(way << "\n" << r.out);
    CHECK(r.code == 2);
    CHECK(r.count("log.prometheus: nothing can be served at 127.0.0.1:" + std::to_string(port)) >= 1);
    CHECK(r.prints("another run uses it"));
    CHECK_FALSE(r.prints("step 1/3"));
    CHECK_FALSE(r.prints("; restart 1 of"));
  }
}
