// Reads untrusted HDF5. libhdf5 crashes on damaged files and follows links out of them, so it runs in a child process.
// The child has limited time and memory, no plugins, and a pipe as its only output. The parent checks every reported
// offset against the file size and reads the values itself.
#include "checkpoint/format/h5_gate.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <sstream>

#include "checkpoint/format/h5_walk.h"
#include "checkpoint/weights/source_file.h"
#include "checkpoint/weights/weights.h"

namespace gt {
namespace {

// Runs the walk in a child process, waits for its exit and returns its output.
std::string walk(const std::string& path, int file, bool attributes) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail_io("pipe for the reader of " + path, -errno);
  const pid_t pid = ::fork();
  if (pid < 0) fail_io("start of the reader of " + path, -errno);
  if (pid == 0) walk_h5(file, ends[1], attributes);
  ::close(ends[1]);
  std::string output;
  char buffer[65536];
  bool too_long = false, late = false;
  for (;;) {
    pollfd p{ends[0], POLLIN, 0};
    const int ready = ::poll(&p, 1, 2 * kH5Seconds * 1000);
    if (ready < 0 && errno == EINTR) continue;
    late = ready == 0;
    const ssize_t n = ready > 0 ? ::read(ends[0], buffer, sizeof buffer) : 0;
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    output.append(buffer, static_cast<size_t>(n));
    if ((too_long = output.size() > kH5OutputLimit)) break;
  }
  ::close(ends[0]);
  if (late || too_long) ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
  GT_REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0 && !late && !too_long, Exit::kDamaged, path,
             ": damaged or hostile HDF5 file: its reader ",
             late || too_long      ? std::string("did not come to an end")
             : WIFSIGNALED(status) ? cat("died of signal ", WTERMSIG(status))
                                   : cat("ended with code ", WEXITSTATUS(status)));
  return output;
}

std::vector<std::string> fields(const std::string& line) {
  std::vector<std::string> out;
  std::istringstream in(line);
  for (std::string f; std::getline(in, f, '\t');) out.push_back(f);
  return out;
}

std::string walk_output(const std::string& path, bool attributes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW);  // for the child: inherited across fork
  if (fd < 0) fail_io("opening of " + path, -errno);
  const int high = ::fcntl(fd, F_DUPFD, 16);  // the child's pipe uses descriptor 3, so the file must have another
  ::close(fd);
  if (high < 0) fail_io("opening of " + path, -errno);
  try {
    std::string output = walk(path, high, attributes);
    ::close(high);
    return output;
  } catch (...) {
    ::close(high);
    throw;
  }
}

[[noreturn]] void refused(const std::string& path, const std::vector<std::string>& f) {
  fail(Exit::kDamaged, path, f.size() > 1 && !f[1].empty() ? ": " + f[1] : "", ": ", f.size() > 2 ? f[2] : "refused");
}

class H5File : public WeightFile {
 public:
  H5File(Vfs& vfs, const std::string& path) : file_(open_source(vfs, path)) {
    understand(path, walk_output(file_.path(), false));
  }
  std::string note(const std::string& key) const override {
    const auto it = notes_.find(key);
    return it == notes_.end() ? "" : it->second;
  }
  std::vector<float> read(size_t k, int64_t first, int64_t count) override {
    return read_values(file_, offsets_[k] + list_[k].item_bytes() * first, count, list_[k].dtype);
  }

 private:
  void understand(const std::string& path, const std::string& output) {
    std::istringstream in(output);
    bool ended = false;
    for (std::string line; std::getline(in, line);) {
      const auto f = fields(line);
      GT_REQUIRE(!f.empty(), Exit::kDamaged, path, ": the HDF5 reader process returned malformed output");
      if (f[0] == "refused") refused(path, f);
      if (f[0] == "end") ended = true;
      if (f[0] == "note" && f.size() == 3) {
        std::string text(std::min<size_t>(std::strtoull(f[2].c_str(), nullptr, 10), kH5NoteLimit), '\0');
        in.read(text.data(), static_cast<std::streamsize>(text.size()));
        in.get();
        notes_[f[1]] = text;
      }
      if (f[0] == "set" && f.size() >= 4) add(path, f);
    }
    GT_REQUIRE(ended, Exit::kDamaged, path, ": damaged or hostile HDF5 file: its reader did not finish");
  }

  void add(const std::string& path, const std::vector<std::string>& f) {
    WeightInfo w{f[1], f[2], {}};
    const int64_t offset = std::strtoll(f[3].c_str(), nullptr, 10), size = file_.size();
    int64_t capacity = (size - std::clamp<int64_t>(offset, 0, size)) / w.item_bytes(), n = 1;
    for (size_t k = 4; k < f.size(); ++k) {
      const int64_t d = std::strtoll(f[k].c_str(), nullptr, 10);
      GT_REQUIRE(d >= 0 && (d == 0 || n <= capacity / d), Exit::kDamaged, path, ": ", w.name, ": ", n, " x ", d,
                 " elements at byte ", offset, " of a file of ", size);
      n *= d;
      w.shape.push_back(d);
    }
    GT_REQUIRE(n == 0 || (offset > 0 && n <= capacity), Exit::kDamaged, path, ": ", w.name, " lies at byte ", offset,
               " of a file of ", size);
    list_.push_back(std::move(w));
    offsets_.push_back(offset);
  }

  File file_;
  std::vector<int64_t> offsets_;
  std::map<std::string, std::string> notes_;
};

}  // namespace

std::vector<H5Set> list_h5(const std::string& path) {
  std::istringstream in(walk_output(path, true));
  std::vector<H5Set> out;
  bool ended = false;
  for (std::string line; std::getline(in, line);) {
    const auto f = fields(line);
    GT_REQUIRE(!f.empty(), Exit::kDamaged, path, ": the HDF5 reader process returned malformed output");
    const auto from = [&](size_t first) {
      std::vector<int64_t> values;
      for (size_t k = first; k < f.size(); ++k) values.push_back(std::strtoll(f[k].c_str(), nullptr, 10));
      return values;
    };
    if (f[0] == "refused") refused(path, f);
    if (f[0] == "end") ended = true;
    if (f[0] == "note" && f.size() == 3) in.ignore(std::atoi(f[2].c_str()) + 1);
    if (f[0] == "set" && f.size() >= 4)
      out.push_back({f[1], f[2], std::strtoll(f[3].c_str(), nullptr, 10), from(4), {}, {}});
    if (f[0] == "numbers" && f.size() >= 2 && !out.empty())
      (f[1] == "rects" ? out.back().rects : out.back().global_shape) = from(2);
  }
  GT_REQUIRE(ended, Exit::kDamaged, path, ": damaged HDF5 file: its reader did not finish");
  return out;
}

std::unique_ptr<WeightFile> open_h5(Vfs& vfs, const std::string& path) { return std::make_unique<H5File>(vfs, path); }

}  // namespace gt
