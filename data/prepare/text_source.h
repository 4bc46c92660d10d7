// Reads lines of text from files, folders, patterns, standard input and gzip in bounded memory: the one reader of text
// of `tokenizer train`, `data prepare` and text as data.train. What is not text is refused (text_content.h).
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

// Files of folders that nobody means as text: hidden ones, marks and caches of other programs, files of token files and
// of tokenizers. `example`: the first of them.
struct LeftOut {
  int64_t hidden = 0, other = 0, outputs = 0;
  std::string example;
  int64_t total() const { return hidden + other + outputs; }
  std::string text() const;  // "3 files left out: 2 hidden, 1 of token files or tokenizers (out.bin, …)"
};

// Expands inputs: files as named; folders recursively and patterns (* ? [), each sorted by name; "-" for standard
// input. kUsage names what does not exist or is empty. `left_out` (optional) receives what folders hold besides.
std::vector<TextInput> expand_inputs(const std::vector<std::string>& names, LeftOut* left_out = nullptr);

// Reads the beginning of every file. Throws kUsage naming the first that is not text, with the command that unpacks or
// converts it.
void require_text(const std::vector<TextInput>& inputs);

// Lines of one input; gzip (.gz, .dz or any file with its magic) is decompressed on the fly. A byte order mark is left
// out. A file of newlines alone, up to 64 KiB, is empty.
class LineReader {
 public:
  // Reads the beginning. A line longer than max_line bytes is returned in parts of that size. Throws kUsage for what is
  // not text, here or in a later block; kIo.
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
  std::string_view head() const;               // up to 64 KiB of text; valid until the first next() or skip_to()
  void limit_lines(int64_t max_line);          // before the first next(): another max_line
  bool next(Line* line);                       // false at the end
  void skip_to(int64_t byte, int64_t number);  // seeks to the start of line `number`, at offset `byte`
  int64_t position() const;                    // decompressed bytes returned so far
  int64_t disk_position() const;               // bytes of the file read so far, for progress

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gt
