#include "launch/options/output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "kernels/core/check.h"

namespace gt {
namespace {

int error_columns() {
  const char* term = std::getenv("TERM");
  if (::isatty(STDERR_FILENO) != 1 || (term && std::strcmp(term, "dumb") == 0)) return 0;
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

void write_out(std::string_view text) {
  GT_REQUIRE(std::fwrite(text.data(), 1, text.size(), stdout) == text.size(), Exit::kIo,
             "standard output: write failed: ", std::strerror(errno));
}

void flush_out() {
  GT_REQUIRE(std::fflush(stdout) == 0, Exit::kIo, "standard output: write failed: ", std::strerror(errno));
}

void require_writable(const std::string& path) {
  GT_REQUIRE(std::ofstream(path, std::ios::app), Exit::kIo, path, ": cannot be written");
}

void write_json_record(const std::string& line, const std::string& path) {
  const bool adds = path.size() > 6 && path.compare(path.size() - 6, 6, ".jsonl") == 0;
  std::ofstream out(path, adds ? std::ios::app : std::ios::trunc);
  out << line << "\n";
  out.close();
  GT_REQUIRE(out, Exit::kIo, path, ": cannot be written");
}

WorkLine::WorkLine()
    : WorkLine(error_columns(), [](std::string_view s) {
        std::fwrite(s.data(), 1, s.size(), stderr);  // errors ignored: a closed standard error is not a failure
        std::fflush(stderr);
      }) {}

WorkLine::WorkLine(int columns, std::function<void(std::string_view)> write)
    : columns_(columns), write_(std::move(write)) {}

void WorkLine::show(const std::string& text) {
  if (!terminal()) return write_(text + '\n');
  const std::string line = text.substr(0, static_cast<size_t>(width()));
  const size_t pad = drawn_ > line.size() ? drawn_ - line.size() : 0;
  write_('\r' + line + std::string(pad, ' ') + std::string(pad, '\b'));
  drawn_ = line.size();
}

void WorkLine::erase() {
  if (drawn_ > 0) write_('\r' + std::string(drawn_, ' ') + '\r');
  drawn_ = 0;
}

}  // namespace gt
