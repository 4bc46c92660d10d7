// Reads lines from files, folders, patterns, standard input and gzip in bounded memory. Independent of their meaning.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace gt {

struct TextInput {
  std::string path;                // "-": standard input
  int64_t size = 0, mtime_ns = 0;  // on disk, compressed
};

// Expands inputs: files as named; folders recursively and patterns (* ? [), each sorted by name; "-" for standard
// input. kUsage names what does not exist or is empty.
std::vector<TextInput> expand_inputs(const std::vector<std::string>& names);

// Lines of one input; gzip (.gz, .dz or any file with its magic) is decompressed on the fly.
class LineReader {
 public:
  // A line longer than max_line bytes is returned in parts of that size. Throws kIo.
  LineReader(const std::string& path, int64_t max_line);
  ~LineReader();
  LineReader(LineReader&&) noexcept;

  struct Line {
    std::string_view text;  // with its newline, if it has one; valid until the next call
    bool complete = true;   // false: the line continues in the next part
    bool first = true;      // false: a part after the first
    int64_t number = 0;     // from 0
    int64_t begin = 0;      // offset of this part in the decompressed text
  };
  bool next(Line* line);                       // false at the end
  void skip_to(int64_t byte, int64_t number);  // seeks to the start of line `number`, at offset `byte`
  int64_t position() const;                    // decompressed bytes returned so far
  int64_t disk_position() const;               // bytes of the file read so far, for progress

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gt
