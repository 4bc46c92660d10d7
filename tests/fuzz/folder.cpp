#include "tests/fuzz/folder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>

#include "launch/commands/cli.h"
#include "tests/fuzz/target.h"

namespace gt::fuzz {
namespace {

constexpr std::string_view kMark = "\n==== ";

// Discards standard output and captures standard error in memory.
class Captured {
 public:
  Captured() : out_(dup(STDOUT_FILENO)), err_(dup(STDERR_FILENO)), memory_(memfd_create("stderr", MFD_CLOEXEC)) {
    GT_CHECK(out_ >= 0 && err_ >= 0 && memory_ >= 0);
    std::fflush(nullptr);
    const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(null, STDOUT_FILENO);
    dup2(memory_, STDERR_FILENO);
    ::close(null);
  }
  ~Captured() {
    std::fflush(nullptr);
    dup2(out_, STDOUT_FILENO);
    dup2(err_, STDERR_FILENO);
    for (const int fd : {out_, err_, memory_}) ::close(fd);
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  std::string text() const {
    std::fflush(stderr);
    std::string s(4096, '\0');
    s.resize(static_cast<size_t>(std::max<ssize_t>(0, pread(memory_, s.data(), s.size(), 0))));
    return s;
  }

 private:
  const int out_, err_, memory_;
};

}  // namespace

Parts split_parts(std::string_view input) {
  Parts out;
  for (size_t at = input.find(kMark); at != std::string_view::npos;) {
    const size_t name = at + kMark.size(), line = input.find('\n', name);
    if (line == std::string_view::npos) break;
    at = input.find(kMark, line);
    out[std::string(input.substr(name, line - name))] = input.substr(line + 1, at - line - 1);
  }
  return out;
}

std::string join_parts(const Parts& parts) {
  std::string out;
  for (const auto& [name, bytes] : parts) out += cat(kMark, name, "\n", bytes);
  return out;
}

bool accepts(const std::vector<std::string>& words) {
  const Command command = parse_command(words, RankEnv{});
  Exit code = Exit::kOk;
  std::string output;
  const bool thrown = refused([&] {
    const Captured captured;
    code = command.run(command);
    output = captured.text();
  });
  if (thrown || code == Exit::kOk) return !thrown;
  GT_CHECK(code == Exit::kUsage || code == Exit::kDamaged || code == Exit::kNumerical, words[0], " ended with ",
           static_cast<int>(code), ": ", output);
  --outcome().accepted;
  outcome().refusals += output;
  return false;
}

}  // namespace gt::fuzz
