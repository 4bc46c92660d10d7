#include "launch/observe/sinks/prometheus_sink.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "kernels/core/check.h"
#include "launch/observe/step_metrics.h"

namespace gt {
namespace {

using Clock = std::chrono::steady_clock;

int milliseconds_until(Clock::time_point t) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(t - Clock::now()).count();
  return static_cast<int>(std::max<int64_t>(0, left));
}

// Label values: backslash, quote and newline are escaped.
std::string label(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out;
}

std::string number(double x) {
  return std::isnan(x) ? "NaN" : std::isinf(x) ? x > 0 ? "+Inf" : "-Inf" : fmt::format("{}", x);
}

std::string reply(const char* status, const char* type, const std::string& body) {
  return fmt::format("HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}", status,
                     type, body.size(), body);
}

// Returns -1 and sets errno on failure.
int open_listener(const Endpoint& e) {
  const bool six = e.address.find(':') != std::string::npos;
  sockaddr_storage at{};
  socklen_t size = 0;
  if (six) {
    auto& a = reinterpret_cast<sockaddr_in6&>(at);
    a.sin6_family = AF_INET6, a.sin6_port = htons(static_cast<uint16_t>(e.port));
    inet_pton(AF_INET6, e.address.c_str(), &a.sin6_addr);
    size = sizeof a;
  } else {
    auto& a = reinterpret_cast<sockaddr_in&>(at);
    a.sin_family = AF_INET, a.sin_port = htons(static_cast<uint16_t>(e.port));
    inet_pton(AF_INET, e.address.c_str(), &a.sin_addr);
    size = sizeof a;
  }
  const int fd = ::socket(six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int on = 1;
  if (fd >= 0) ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (fd >= 0 && ::bind(fd, reinterpret_cast<const sockaddr*>(&at), size) == 0 && ::listen(fd, 64) == 0) return fd;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  errno = error;
  return -1;
}

}  // namespace

std::string prometheus_text(const PrometheusValues& v) {
  std::string out;
  const std::string labels = fmt::format("{{run=\"{}\"}}", label(v.run));
  const auto add = [&](const char* name, const char* type, const char* help, double value) {
    out += fmt::format("# HELP gpttrain_{0} {1}\n# TYPE gpttrain_{0} {2}\ngpttrain_{0}{3} {4}\n", name, help, type,
                       labels, number(value));
  };
  static const auto kRows = metrics_in([](const StepMetric& m) -> const MetricName& { return m.prometheus; });
  const StepRecord& r = v.step;
  const auto rows = [&](int from, int to) {
    for (const StepMetric* m : kRows) {
      const auto& [at, name] = m->prometheus;
      const bool counter = std::string_view(name).ends_with("_total");
      if (const double x = m->of(r); at >= from && at < to && m->known(x))
        add(name, counter ? "counter" : "gauge", m->help, x);
    }
  };
  rows(0, StepMetric::kAfterFirstStep);
  add("warnings_total", "counter", "Warnings of this process.", static_cast<double>(v.warnings));
  if (r.step > 0) {
    rows(StepMetric::kAfterFirstStep, 1 << 20);
    add("last_step_timestamp_seconds", "gauge", "End of the last step, seconds since 1970.", r.time);
  }
  if (v.eval_step >= 0) {
    add("eval_loss", "gauge", "Loss of the last evaluation.", v.eval_loss);
    add("eval_step", "gauge", "Step of the last evaluation.", static_cast<double>(v.eval_step));
  }
  if (v.saved_step >= 0)
    add("checkpoint_step", "gauge", "Step of the newest checkpoint.", static_cast<double>(v.saved_step));
  return out;
}

std::string prometheus_answer(std::string_view request, const PrometheusValues& values) {
  constexpr const char* kPlain = "text/plain; charset=utf-8";
  const std::string_view line = request.substr(0, request.find("\r\n"));
  const size_t method = line.find(' '), path = method == line.npos ? line.npos : line.find(' ', method + 1);
  if (path == line.npos || line.substr(path + 1, 7) != "HTTP/1.")
    return reply("400 Bad Request", kPlain, "bad request\n");
  if (line.substr(0, method) != "GET") return reply("405 Method Not Allowed", kPlain, "only GET\n");
  const std::string_view target = line.substr(method + 1, path - method - 1);
  if (target.substr(0, target.find('?')) != "/metrics") return reply("404 Not Found", kPlain, "GET /metrics\n");
  return reply("200 OK", "text/plain; version=0.0.4; charset=utf-8", prometheus_text(values));
}

void PrometheusSink::open() {
  constexpr auto kPatience = std::chrono::milliseconds(1500), kPause = std::chrono::milliseconds(100);
  for (const auto end = Clock::now() + kPatience; listener_ < 0;) {
    listener_ = open_listener(endpoint_);
    const int error = errno;
    if (listener_ >= 0) break;
    if (error == EADDRINUSE && Clock::now() < end) {
      std::this_thread::sleep_for(kPause);  // the attempt before this one may just be ending
      continue;
    }
    fail(Exit::kUsage, "log.prometheus: nothing can be served at ", endpoint_.address, ":", endpoint_.port, ": ",
         std::strerror(error), error == EADDRINUSE ? "; another run uses it, give another port" : "");
  }
}

void PrometheusSink::start(const StartInfo& info) {
  values_.run = std::filesystem::path(info.run_dir).filename().string();
  values_.step.total_steps = info.total_steps;
  values_.step.step = info.first_step - 1;
  open();
  GT_REQUIRE(::pipe2(wake_, O_CLOEXEC) == 0, Exit::kIo, "pipe: ", std::strerror(errno));
  thread_ = std::thread([this] { serve(); });
}

void PrometheusSink::step(const StepRecord& r) {
  const std::lock_guard lock(mutex_);
  values_.step = r;
}
void PrometheusSink::eval(const EvalRecord& r) {
  const std::lock_guard lock(mutex_);
  values_.eval_loss = r.loss, values_.eval_step = r.step;
}
void PrometheusSink::saved(const SavedRecord& r) {
  const std::lock_guard lock(mutex_);
  values_.saved_step = r.step;
}
void PrometheusSink::event(const EventRecord& r) {
  const std::lock_guard lock(mutex_);
  values_.warnings += r.warning ? 1 : 0;
}

// One client: its request so far, then what is left of the answer.
struct PrometheusSink::Client {
  int fd = -1;
  Clock::time_point deadline;
  std::string request, answer;
  bool answers = false;
  bool over = false;
};

void PrometheusSink::serve() {
  std::vector<Client> clients;
  for (bool pauses = false;;) {
    std::vector<pollfd> waits{{wake_[0], POLLIN, 0}, {pauses ? -1 : listener_, POLLIN, 0}};
    int limit = pauses ? 1000 : -1;
    for (const Client& c : clients) {
      waits.push_back({c.fd, static_cast<short>(c.answers ? POLLOUT : POLLIN), 0});
      const int left = milliseconds_until(c.deadline) + 1;
      limit = limit < 0 ? left : std::min(limit, left);
    }
    if (::poll(waits.data(), waits.size(), limit) < 0 && errno != EINTR) break;
    if (waits[0].revents != 0) break;
    for (size_t i = 0; i < clients.size(); ++i)
      if (waits[i + 2].revents != 0) advance(clients[i]);
    pauses = waits[1].revents != 0 && !accept_all(clients);
    std::erase_if(clients, [](const Client& c) {
      const bool ends = c.over || Clock::now() >= c.deadline;
      if (ends) ::close(c.fd);
      return ends;
    });
  }
  for (const Client& c : clients) ::close(c.fd);
}

// Returns false if this process is out of descriptors: the connection stays pending, so that poll() would return at
// once. Silent clients beyond the most are replaced by new ones, oldest first.
bool PrometheusSink::accept_all(std::vector<Client>& clients) const {
  for (;;) {
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return errno != EMFILE && errno != ENFILE;
    if (clients.size() >= kMostClients) {
      ::close(clients.front().fd);
      clients.erase(clients.begin());
    }
    clients.push_back({fd, Clock::now() + std::chrono::seconds(kMostSeconds), "", "", false, false});
  }
}

// Reads or writes what is possible now.
void PrometheusSink::advance(Client& c) {
  char buffer[1024];
  while (!c.answers) {
    const ssize_t n = ::recv(c.fd, buffer, sizeof buffer, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0 || c.request.size() >= kMostRequest) return void(c.over = true);
    c.request.append(buffer, static_cast<size_t>(n));
    if (c.request.find("\r\n\r\n") == std::string::npos) continue;
    const std::lock_guard lock(mutex_);
    c.answer = prometheus_answer(c.request, values_);
    c.answers = true;
  }
  while (!c.answer.empty()) {
    const ssize_t n = ::send(c.fd, c.answer.data(), c.answer.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0) break;
    c.answer.erase(0, static_cast<size_t>(n));
  }
  c.over = true;
}

void PrometheusSink::stop() {
  if (thread_.joinable()) {
    (void)!::write(wake_[1], "x", 1);
    thread_.join();
  }
  for (int* fd : {&listener_, &wake_[0], &wake_[1]}) {
    if (*fd >= 0) ::close(*fd);
    *fd = -1;
  }
}

std::unique_ptr<PrometheusSink> open_prometheus(const std::string& endpoint) {
  if (endpoint.empty()) return nullptr;
  auto out = std::make_unique<PrometheusSink>(parse_endpoint(endpoint));
  out->open();
  return out;
}

}  // namespace gt
