#include "tests/launch/process.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "tests/support/paths.h"
#include "tests/support/test.h"

namespace gt {

int Outcome::count(const std::string& text) const {
  int n = 0;
  for (size_t at = out.find(text); at != std::string::npos; at = out.find(text, at + text.size())) ++n;
  return n;
}

Outcome gpttrain(const std::string& args, const std::string& cwd, int limit_s,
                 const std::function<void(int)>& while_running) {
  return shell("exec " + binary_dir() + "/gpttrain " + args, cwd, limit_s, while_running);
}

Outcome must(const std::string& args, const std::string& cwd) {
  Outcome r = gpttrain(args, cwd);
  INFO(args << "\n" << r.out);
  REQUIRE(r.code == 0);
  return r;
}

namespace {

// Reads a pipe to its end on a thread of its own, so that the process that writes it never waits for the test.
class Drain {
 public:
  Drain(int fd, pid_t group, std::string& into)
      : group_(group), thread_([this, fd, &into] {
          char buffer[4096];
          for (ssize_t n; (n = read(fd, buffer, sizeof buffer)) > 0 || (n < 0 && errno == EINTR);)
            if (n > 0) into.append(buffer, static_cast<size_t>(n));
          done_ = true;
        }) {}
  ~Drain() {
    if (!done_) kill(-group_, SIGKILL);  // after a failed REQUIRE
    thread_.join();
  }
  bool done() const { return done_; }

 private:
  const pid_t group_;
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

}  // namespace

Outcome shell(const std::string& command, const std::string& cwd, int limit_s,
              const std::function<void(int)>& while_running) {
  int pipe_fd[2];
  if (pipe2(pipe_fd, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
  const pid_t pid = fork();
  if (pid == 0) {
    setpgid(0, 0);
    dup2(pipe_fd[1], 1);
    dup2(pipe_fd[1], 2);
    const int null = open("/dev/null", O_RDONLY);
    dup2(null, 0);
    if (chdir(cwd.c_str()) != 0) _exit(127);
    setenv("XDG_CACHE_HOME", cwd.c_str(), 1);  // confine the cache to the test's folder
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  close(pipe_fd[1]);
  Outcome r;
  bool late = false;
  {
    const Drain drain(pipe_fd[0], pid, r.out);
    if (while_running) while_running(pid);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(kSanitized ? 10 * limit_s : limit_s);
    while (!drain.done()) {
      usleep(2000);
      if (late || std::chrono::steady_clock::now() <= end) continue;
      late = true;
      kill(-pid, SIGKILL);
    }
  }
  close(pipe_fd[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  r.code = late ? 124 : WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return r;
}

TempDir::TempDir() {
  std::string name = (std::filesystem::temp_directory_path() / "gpttrain-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp " + name);
  path_ = name;
}

TempDir::~TempDir() {
  std::error_code ec;
  std::filesystem::permissions(path_, std::filesystem::perms::owner_all, ec);
  std::filesystem::remove_all(path_, ec);
}

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET, at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  const bool bound = ::bind(fd, reinterpret_cast<const sockaddr*>(&at), size) == 0 &&
                     ::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) == 0;
  ::close(fd);
  if (!bound) throw std::runtime_error("no free port");
  return ntohs(at.sin_port);
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!out.good()) throw std::runtime_error("cannot write " + path);
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<double> logged(const std::string& run_dir, const std::string& key, const std::string& type) {
  std::map<int64_t, double> by_step;
  std::ifstream in(run_dir + "/log.jsonl");
  for (std::string line; std::getline(in, line);) {
    const auto record = nlohmann::json::parse(line);
    if (record["type"] != type) continue;
    const auto& value = record[key];  // non-finite values are strings; comparable, unlike nan
    by_step[record["step"]] = value.is_string() ? std::numeric_limits<double>::infinity() : value.get<double>();
  }
  std::vector<double> out;
  for (const auto& [step, value] : by_step) out.push_back(value);
  return out;
}

}  // namespace gt
