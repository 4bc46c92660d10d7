#include "data/prepare/text_source.h"

#include <fcntl.h>
#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "data/prepare/text_content.h"
#include "data/prepare/unpacked_file.h"
#include "data/tokenizer/utf8.h"
#include "data/tokens/mapped_file.h"
#include "kernels/core/check.h"
#include "kernels/core/files.h"
#include "kernels/core/text.h"

namespace gt {
namespace {
namespace fs = std::filesystem;

void add_file(const std::string& path, std::vector<TextInput>* out) {
  open_to_read(path);  // rejects anything but a regular file
  const FileStamp s = stamp_of(path);
  out->push_back({path, s.size, s.mtime_ns});
}

// Whether `name` in this folder belongs to token files or to a tokenizer, which stand beside it.
bool is_output(const fs::path& folder, const std::string& name) {
  std::error_code ec;
  const auto there = [&](const std::string& stem, const char* suffix) {
    return fs::is_regular_file(folder / (stem + suffix), ec);
  };
  for (const char* suffix : {".bin", ".idx", ".mask", ".meta.json", ".progress.json", ".bin.part", ".len.part",
                             ".idx.part", ".mask.part", ".model", ".vocab"}) {
    if (!name.ends_with(suffix)) continue;
    const std::string stem = name.substr(0, name.size() - std::strlen(suffix));
    const bool tokens = there(stem, ".idx") || there(stem, ".progress.json");
    if (tokens || (there(stem, ".model") && there(stem, ".vocab"))) return true;
  }
  return false;
}

bool is_mark(const std::string& name) {  // of other programs
  for (const char* known : {"_SUCCESS", "_metadata", "_common_metadata", "Thumbs.db", "desktop.ini"})
    if (name == known) return true;
  return name.ends_with('~') || name.ends_with(".pyc") || (name.starts_with('#') && name.ends_with('#'));
}

void add_folder(const std::string& path, std::vector<TextInput>* out, LeftOut* left) try {
  std::vector<std::string> files;
  const auto leave = [&](int64_t& count, const fs::path& file) {
    if (left->total() == 0) left->example = file.string();
    ++count;
  };
  for (auto e = fs::recursive_directory_iterator(path); e != fs::recursive_directory_iterator(); ++e) {
    const std::string name = e->path().filename().string();
    const bool folder = e->is_directory() && !e->is_symlink();
    if (folder && (name.starts_with('.') || name == "__pycache__" || name == "__MACOSX")) {
      leave(name.starts_with('.') ? left->hidden : left->other, e->path());
      e.disable_recursion_pending();
    } else if (!e->is_regular_file()) {
      continue;
    } else if (name.starts_with('.')) {
      leave(left->hidden, e->path());
    } else if (is_mark(name)) {
      leave(left->other, e->path());
    } else if (is_output(e->path().parent_path(), name)) {
      leave(left->outputs, e->path());
    } else {
      files.push_back(e->path().string());
    }
  }
  GT_REQUIRE(!files.empty(), Exit::kUsage, path, ": the folder has no files",
             left->total() > 0 ? " of text: " + left->text() : "");
  std::sort(files.begin(), files.end());
  for (const std::string& f : files) add_file(f, out);
} catch (const fs::filesystem_error& e) {
  fail(Exit::kUsage, e.path1().string(), ": cannot be read: ", e.code().message());
}
}  // namespace

std::string LeftOut::text() const {
  if (total() == 0) return "";
  std::string kinds;
  for (const auto& [count, kind] : {std::pair(hidden, "hidden"),
                                    {outputs, "of token files or tokenizers"},
                                    {other, "marks and caches of other programs"}})
    if (count > 0) kinds += cat(kinds.empty() ? "" : ", ", count, ' ', kind);
  return cat(total(), total() == 1 ? " file or folder" : " files or folders", " left out: ", kinds, " (", example,
             total() > 1 ? ", …)" : ")");
}

std::vector<TextInput> expand_inputs(const std::vector<std::string>& names, LeftOut* left_out) {
  LeftOut unused;
  LeftOut* const left = left_out != nullptr ? left_out : &unused;
  GT_REQUIRE(!names.empty(), Exit::kUsage, "--input: expected a file, a folder, a pattern or -, found nothing");
  std::vector<TextInput> out;
  for (const std::string& name : names) {
    if (name == "-") {
      out.push_back({"-", 0, 0});
    } else if (fs::is_directory(name)) {
      add_folder(name, &out, left);
    } else if (fs::exists(name)) {
      add_file(name, &out);
    } else {
      glob_t g{};
      const int rc = ::glob(name.c_str(), GLOB_ERR, nullptr, &g);
      std::vector<std::string> found;
      for (size_t i = 0; rc == 0 && i < g.gl_pathc; ++i) found.emplace_back(g.gl_pathv[i]);
      ::globfree(&g);
      GT_REQUIRE(!found.empty(), Exit::kUsage, "--input ", name, ": no such file, and no file matches it as a pattern");
      for (const std::string& f : found) fs::is_directory(f) ? add_folder(f, &out, left) : add_file(f, &out);
    }
  }
  return out;
}

void require_text(const std::vector<TextInput>& inputs) {
  for (const TextInput& i : inputs)
    if (i.path != "-") LineReader(i.path, 1 << 16);
}

struct LineReader::Impl {
  std::string path;
  size_t max_line;
  std::unique_ptr<UnpackedFile> file;
  std::string buffer;
  size_t begin = 0, end = 0;  // unread bytes of the buffer
  int64_t position = 0, number = 0;
  bool at_end = false, first = true;
  bool checked = false;  // the beginning is text

  // Reads more input after `end`; false at the end of the input.
  bool refill() {
    if (at_end) return false;
    if (begin > 0) {
      std::memmove(buffer.data(), buffer.data() + begin, end - begin);
      end -= begin;
      begin = 0;
    }
    if (end == buffer.size()) buffer.resize(std::min(buffer.size() * 2, std::max(max_line, size_t{1} << 16)));
    const size_t n = file->read(buffer.data() + end, std::min<size_t>(buffer.size() - end, 1 << 26));
    const std::string_view block(buffer.data() + end, n);
    if (checked) {
      const ByteCounts counts = count_bytes(block.substr(begins_inside(block)));
      GT_REQUIRE(!is_binary_block(counts), Exit::kUsage, path, " from byte ",
                 position + static_cast<int64_t>(end - begin), ": expected text, found binary data: of ", counts.bytes,
                 " bytes ", counts.control, " are control characters and ", counts.invalid,
                 " are not UTF-8; mend the file or leave it out");
    }
    end += n;
    at_end = n == 0;
    return n > 0;
  }
  // Bytes of a character that began before this block.
  static size_t begins_inside(std::string_view block) {
    size_t n = 0;
    while (n < 3 && n < block.size() && (static_cast<unsigned char>(block[n]) & 0xC0) == 0x80) ++n;
    return n;
  }
  // A file of newlines alone is empty: to those who split it into lines it holds nothing.
  void pass_over_newlines() {
    const auto bare = [&] { return std::string_view(buffer).substr(0, end).find_first_not_of("\r\n") >= end; };
    while (end < buffer.size() && bare() && refill()) {}
    if (at_end && bare()) begin = end;
  }
  void check_head(const std::string& given) {
    std::string_view head(buffer.data(), end);
    if (!at_end) head.remove_suffix(utf8_open_suffix(head));
    const bool packed = file->packed();
    NotText found = not_text(head, given);
    if (packed && found && found.what != "a tar archive") {  // tar unpacks gzip by itself
      const std::string inner = given.ends_with(".gz") ? given.substr(0, given.size() - 3) : given + ".unpacked";
      found.advice = given == "-" ? "unpack it, then " + found.advice
                                  : cat("unpack it: gzip -dc ", shell_word(given), " > ", shell_word(inner), "; then ",
                                        not_text(head, inner).advice);
    }
    GT_REQUIRE(!found, Exit::kUsage, path, ": expected text, found ", found.what, packed ? " in gzip data; " : "; ",
               found.advice);
    checked = true;
    if (head.starts_with("\xEF\xBB\xBF")) begin = 3, position = 3;
  }
};

LineReader::LineReader(const std::string& path, int64_t max_line) : impl_(new Impl) {
  impl_->path = path == "-" ? "standard input" : path;
  impl_->max_line = static_cast<size_t>(std::max<int64_t>(max_line, 16));
  impl_->buffer.resize(1 << 16);
  const int fd = path == "-" ? ::dup(0) : open_to_read(path).release();
  GT_REQUIRE(fd >= 0, Exit::kIo, impl_->path, ": cannot be read: ", std::strerror(errno));
  impl_->file = std::make_unique<UnpackedFile>(Fd(fd), impl_->path);
  impl_->refill();
  impl_->pass_over_newlines();
  impl_->check_head(path);
}

std::string_view LineReader::head() const {
  return std::string_view(impl_->buffer).substr(impl_->begin, impl_->end - impl_->begin);
}

void LineReader::limit_lines(int64_t max_line) {
  impl_->max_line = static_cast<size_t>(std::max<int64_t>(max_line, 16));
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
  GT_CHECK(m.number == 0 && m.first, "skip_to is the first call");
  const auto buffered = static_cast<int64_t>(m.end - m.begin);
  if (byte >= m.position && byte <= m.position + buffered) {
    m.begin += static_cast<size_t>(byte - m.position);
  } else {
    m.begin = m.end = 0;
    int64_t at = m.position + buffered;
    std::string scrap(1 << 16, '\0');
    if (m.file->seek(byte)) at = byte;
    while (at < byte) {
      const auto n = static_cast<int64_t>(m.file->read(scrap.data(), std::min<size_t>(1 << 16, byte - at)));
      GT_REQUIRE(n > 0, Exit::kIo, m.path, ": expected at least ", byte, " bytes of text, found ", at,
                 "; the input changed");
      at += n;
    }
  }
  m.position = byte;
  m.number = number;
}

int64_t LineReader::position() const { return impl_->position; }
int64_t LineReader::disk_position() const { return impl_->file->disk_position(); }

}  // namespace gt
