// TensorBoard event files, encoded by hand: TFRecord framing around the protobuf wire format of Event messages. No
// protobuf library, because Debian's and SentencePiece's cannot share a process.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "launch/observe/metrics.h"
#include "launch/observe/sinks/log_file.h"

namespace gt {

// Returns one framed record: u64 length, its masked CRC-32C, data, masked CRC-32C of the data; little-endian.
std::string tfrecord(std::string_view data);

// Return encoded Event messages without framing. wall: seconds since 1970.
std::string event_file_version(double wall);
std::string event_session_start(double wall, int64_t step);
std::string event_scalar(double wall, int64_t step, std::string_view tag, float value);
std::string event_text(double wall, int64_t step, std::string_view tag, std::string_view text);
std::string event_histogram(double wall, int64_t step, std::string_view tag, const Histogram& h);

// Hyperparameter of a run, for TensorBoard's HParams plugin.
struct HParam {
  std::string name;
  std::variant<double, bool, std::string> value;
};
// The experiment: names and types of settings, tags of metrics. Settings in ascending order of names.
std::string event_hparams_experiment(double wall, std::span<const HParam> settings,
                                     std::span<const std::string> metrics);
std::string event_hparams_start(double wall, std::span<const HParam> settings);
std::string event_hparams_end(double wall, bool success);

// Largest wall time of the complete events in an event file; 0: none. A damaged or truncated file counts up to its
// first invalid length; an unreadable one has none.
double last_event_time(const std::string& path);

// Event file of one start of a run. Records are buffered; only flush() and the destructor write to the file (LogFile
// handles a full disk). Readers take files in the order of their names and show nothing of a file before the newest one
// that they have read. If this host's clock is behind the folder's event files, name and wall times continue from them.
class TensorBoardFile {
 public:
  // Creates events.out.tfevents.<unix seconds>.<host>.<pid>.<n> in `folder`. Writes the version and a START record,
  // which makes readers drop events of earlier starts from first_step on. Throws Error(kIo).
  TensorBoardFile(const std::string& folder, int64_t first_step, double wall);
  void scalar(std::string_view tag, double value, int64_t step, double wall);
  void text(std::string_view tag, std::string_view text, int64_t step, double wall);
  void histogram(std::string_view tag, const Histogram& h, int64_t step, double wall);
  void add(std::string_view event);  // an encoded Event, its time from event_time()
  // Wall time of an event at `wall` by this host's clock: never before an earlier event's.
  double event_time(double wall) { return latest_ = std::max(latest_, wall + ahead_); }
  // Writes a START record after a rollback: readers drop events of this and earlier files from `step` on.
  void start_again(int64_t step, double wall) { add(event_session_start(event_time(wall), step)); }
  void flush();
  std::vector<std::string> notices() { return file_.notices(); }
  std::string unwritten() const { return file_.unwritten(); }
  const std::string& path() const { return file_.path(); }

 private:
  struct Start {
    int64_t seconds;  // in the file's name
    double wall;      // of its first event
  };
  static Start start_in(const std::string& folder, double wall);
  TensorBoardFile(const std::string& folder, int64_t first_step, double wall, Start start);

  const double ahead_;  // seconds by which the folder's event files are ahead of this host's clock
  double latest_;       // wall time of the last event
  LogFile file_;
  size_t waiting_ = 0;  // bytes since the last flush
};

}  // namespace gt
