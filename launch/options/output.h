// Output of subcommands other than training: results to standard output, progress to standard error.
#pragma once
#include <functional>
#include <string>
#include <string_view>

namespace gt {

// Writes to standard output, buffered; throws kIo if it is full or closed.
void write_out(std::string_view text);
void flush_out();

void require_writable(const std::string& path);  // checked before a long measurement. Throws kIo
// Replaces the file by one JSON object, or appends it as a line if the name ends in .jsonl. Throws kIo.
void write_json_record(const std::string& line, const std::string& path);

// Progress line. On a terminal it is redrawn in place (with spaces, no escape codes). Elsewhere every show() prints a
// line, so call it less often.
class WorkLine {
 public:
  WorkLine();                                                          // standard error
  WorkLine(int columns, std::function<void(std::string_view)> write);  // columns 0: not a terminal
  ~WorkLine() { erase(); }
  WorkLine(const WorkLine&) = delete;
  WorkLine& operator=(const WorkLine&) = delete;

  bool terminal() const { return columns_ > 0; }
  int width() const { return columns_ > 0 ? columns_ - 1 : 0; }  // the last column would wrap on some terminals
  double seconds() const { return terminal() ? 1 : 10; }         // recommended interval between two show() calls
  void show(const std::string& text);                            // plain ASCII
  void erase();

 private:
  int columns_;
  std::function<void(std::string_view)> write_;
  size_t drawn_ = 0;
};

}  // namespace gt
