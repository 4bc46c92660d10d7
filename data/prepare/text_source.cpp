#include "data/prepare/text_source.h"

#include <fcntl.h>
#include <glob.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "data/tokens/mapped_file.h"
#include "kernels/core/check.h"
#include "kernels/core/files.h"

namespace gt {
namespace {
namespace fs = std::filesystem;

void add_file(const std::string& path, std::vector<TextInput>* out) {
  open_to_read(path);  // rejects anything but a regular file
  const FileStamp s = stamp_of(path);
  out->push_back({path, s.size, s.mtime_ns});
}

void add_folder(const std::string& path, std::vector<TextInput>* out) {
  std::vector<std::string> files;
  for (const auto& e : fs::recursive_directory_iterator(path))
    if (e.is_regular_file()) files.push_back(e.path().string());
  GT_REQUIRE(!files.empty(), Exit::kUsage, path, ": the folder has no files");
  std::sort(files.begin(), files.end());
  for (const std::string& f : files) add_file(f, out);
}
}  // namespace

std::vector<TextInput> expand_inputs(const std::vector<std::string>& names) {
  GT_REQUIRE(!names.empty(), Exit::kUsage, "--input: expected a file, a folder, a pattern or -, found nothing");
  std::vector<TextInput> out;
  for (const std::string& name : names) {
    if (name == "-") {
      out.push_back({"-", 0, 0});
    } else if (fs::is_directory(name)) {
      add_folder(name, &out);
    } else if (fs::exists(name)) {
      add_file(name, &out);
    } else {
      glob_t g{};
      const int rc = ::glob(name.c_str(), GLOB_ERR, nullptr, &g);
      std::vector<std::string> found;
      for (size_t i = 0; rc == 0 && i < g.gl_pathc; ++i) found.emplace_back(g.gl_pathv[i]);
      ::globfree(&g);
      GT_REQUIRE(!found.empty(), Exit::kUsage, "--input ", name, ": no such file, and no file matches it as a pattern");
      for (const std::string& f : found) fs::is_directory(f) ? add_folder(f, &out) : add_file(f, &out);
    }
  }
  return out;
}

struct LineReader::Impl {
  std::string path;
  size_t max_line;
  gzFile file = nullptr;
  std::string buffer;
  size_t begin = 0, end = 0;  // unread bytes of the buffer
  int64_t position = 0, number = 0;
  bool at_end = false, first = true;

  ~Impl() {
    if (file != nullptr) gzclose(file);
  }
  // Reads more input after `end`; false at the end of the input.
  bool refill() {
    if (at_end) return false;
    if (begin > 0) {
      std::memmove(buffer.data(), buffer.data() + begin, end - begin);
      end -= begin;
      begin = 0;
    }
    if (end == buffer.size()) buffer.resize(std::min(buffer.size() * 2, std::max(max_line, size_t{1} << 16)));
    const int n =
        gzread(file, buffer.data() + end, static_cast<unsigned>(std::min<size_t>(buffer.size() - end, 1 << 26)));
    int code = Z_OK;
    const char* message = gzerror(file, &code);
    GT_REQUIRE(n >= 0 && (code == Z_OK || code == Z_STREAM_END), Exit::kIo, path, " byte ", gzoffset(file),
               ": read failed: ",
               code == Z_ERRNO       ? std::strerror(errno)
               : code == Z_BUF_ERROR ? "the compressed file ends too early"
                                     : message);
    end += static_cast<size_t>(n);
    at_end = n == 0;
    return n > 0;
  }
};

LineReader::LineReader(const std::string& path, int64_t max_line) : impl_(new Impl) {
  impl_->path = path == "-" ? "standard input" : path;
  impl_->max_line = static_cast<size_t>(std::max<int64_t>(max_line, 16));
  impl_->buffer.resize(1 << 16);
  const int fd = path == "-" ? ::dup(0) : open_to_read(path).release();
  GT_REQUIRE(fd >= 0, Exit::kIo, impl_->path, ": cannot be read: ", std::strerror(errno));
  impl_->file = gzdopen(fd, "rb");
  GT_CHECK(impl_->file != nullptr);
  gzbuffer(impl_->file, 1 << 17);
}
LineReader::~LineReader() = default;
LineReader::LineReader(LineReader&&) noexcept = default;

bool LineReader::next(Line* line) {
  Impl& m = *impl_;
  size_t searched = 0;
  for (;;) {
    const size_t have = m.end - m.begin;
    const char* at = m.buffer.data() + m.begin;
    const void* newline = have > searched ? std::memchr(at + searched, '\n', have - searched) : nullptr;
    size_t n = newline != nullptr ? static_cast<size_t>(static_cast<const char*>(newline) - at) + 1 : have;
    bool whole = newline != nullptr;
    if (n > m.max_line) n = m.max_line, whole = false;
    if (whole || n == m.max_line || !m.refill()) {
      if (n == 0) return false;
      at = m.buffer.data() + m.begin;  // refill may have moved the buffer
      const bool complete = whole || (m.at_end && n == m.end - m.begin);
      *line = {{at, n}, complete, m.first, m.number, m.position};
      m.begin += n;
      m.position += static_cast<int64_t>(n);
      m.first = complete;
      m.number += complete ? 1 : 0;
      return true;
    }
    searched = have;
  }
}

void LineReader::skip_to(int64_t byte, int64_t number) {
  Impl& m = *impl_;
  GT_CHECK(m.position == 0 && m.begin == m.end, "skip_to is the first call");
  std::string scrap(1 << 16, '\0');  // gzseek does the same for pipes and compressed files, but hides read errors
  if (gzdirect(m.file) && gzseek(m.file, byte, SEEK_SET) == byte) {
    m.position = byte;
  } else {
    while (m.position < byte) {
      const int n = gzread(m.file, scrap.data(), static_cast<unsigned>(std::min<int64_t>(1 << 16, byte - m.position)));
      GT_REQUIRE(n > 0, Exit::kIo, m.path, ": expected at least ", byte, " bytes of text, found ", m.position,
                 "; the input changed");
      m.position += n;
    }
  }
  m.number = number;
}

int64_t LineReader::position() const { return impl_->position; }
int64_t LineReader::disk_position() const { return gzoffset(impl_->file); }

}  // namespace gt
