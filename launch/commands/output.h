// Where verbs that are no training runs write: results to standard output, what is going on to standard error.
#pragma once
#include <functional>
#include <string>
#include <string_view>

namespace gt {

// Writes to standard output, buffered; throws kIo when it is full or closed.
void write_out(std::string_view text);
void flush_out();

// The one line that says how far a verb is. On a terminal it is redrawn in place (spaces, no escape codes); elsewhere
// every show() is a line of its own, so show less often.
class WorkLine {
 public:
  WorkLine();                                                          // standard error
  WorkLine(int columns, std::function<void(std::string_view)> write);  // columns 0: no terminal
  ~WorkLine() { erase(); }
  WorkLine(const WorkLine&) = delete;
  WorkLine& operator=(const WorkLine&) = delete;

  bool terminal() const { return columns_ > 0; }
  int width() const { return columns_ > 0 ? columns_ - 1 : 0; }  // the last column would wrap on some terminals
  double seconds() const { return terminal() ? 1 : 10; }         // between two show()s
  void show(const std::string& text);                            // plain ASCII
  void erase();

 private:
  int columns_;
  std::function<void(std::string_view)> write_;
  size_t drawn_ = 0;
};

}  // namespace gt
