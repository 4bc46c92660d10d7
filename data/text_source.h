// Text from files, folders, patterns, standard input and gzip, as lines in bounded memory. Knows nothing of what lines
// mean.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace gt {

struct TextInput {
  std::string path;                // "-": standard input
  int64_t size = 0, mtime_ns = 0;  // on disk, compressed as it is
};

// Files as named; folders recursively, sorted by name; patterns (* ? [) sorted by name; "-" for standard input. kUsage
// names what does not exist or is empty.
std::vector<TextInput> expand_inputs(const std::vector<std::string>& names);

// Lines of one input; gzip (.gz, .dz or any file that begins like it) is decompressed on the way.
class LineReader {
 public:
  // A line longer than max_line bytes comes in parts of that size. Throws kIo.
  LineReader(const std::string& path, int64_t max_line);
  ~LineReader();
  LineReader(LineReader&&) noexcept;

  struct Line {
    std::string_view text;  // with its newline, if it has one; valid until the next call
    bool complete = true;   // false: the line goes on in the next part
    bool first = true;      // false: a part after the first
    int64_t number = 0;     // counted from 0
    int64_t begin = 0;      // byte of the decompressed text where this part begins
  };
  bool next(Line* line);                       // false at the end
  void skip_to(int64_t byte, int64_t number);  // to the beginning of line `number`, which is at `byte`
  int64_t position() const;                    // decompressed bytes returned so far
  int64_t disk_position() const;               // bytes of the file that have been read: for progress

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gt
