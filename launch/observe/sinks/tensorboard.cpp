#include "launch/observe/sinks/tensorboard.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "kernels/core/check.h"
#include "kernels/core/files.h"
#include "kernels/core/hash/crc32c.h"
#include "kernels/core/host.h"
#include "launch/options/json_text.h"

namespace gt {
namespace {

namespace fs = std::filesystem;
static_assert(std::endian::native == std::endian::little, "records are written in memory order");

template <class T>
void put_raw(std::string& out, T x) {
  char bytes[sizeof x];
  std::memcpy(bytes, &x, sizeof x);
  out.append(bytes, sizeof x);
}

void put_varint(std::string& out, uint64_t x) {
  for (; x >= 0x80; x >>= 7) out += static_cast<char>(x | 0x80);
  out += static_cast<char>(x);
}

enum Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
void put_key(std::string& out, int field, Wire wire) { put_varint(out, static_cast<uint64_t>(field << 3 | wire)); }

void put_int(std::string& out, int field, int64_t x) {
  if (x == 0) return;
  put_key(out, field, kVarint);
  put_varint(out, static_cast<uint64_t>(x));
}

void put_bytes(std::string& out, int field, std::string_view s) {
  put_key(out, field, kBytes);
  put_varint(out, s.size());
  out += s;
}

// Common prefix of Events: wall_time = 1, step = 2.
std::string event_head(double wall, int64_t step) {
  std::string out;
  if (wall != 0) put_key(out, 1, kFixed64), put_raw(out, wall);
  put_int(out, 2, step);
  return out;
}

std::string with_summary(std::string event, std::string_view value) {
  std::string summary;
  put_bytes(summary, 1, value);
  put_bytes(event, 5, summary);
  return event;
}

uint32_t masked_crc(const void* data, size_t n) {
  const uint32_t c = crc32c(data, n);
  return ((c >> 15) | (c << 17)) + 0xA282EAD8u;
}

constexpr size_t kFlushBytes = 1 << 20;
constexpr int64_t kMostSeconds = 9'999'999'999;  // what ten digits of a name hold; later times are not believed

constexpr std::string_view kPrefix = "events.out.tfevents.";

std::string file_name(const std::string& folder, int64_t seconds) {
  static std::atomic<int> count{0};  // distinguishes files that one process creates within a second
  return fmt::format("{}/{}{:010}.{}.{}.{}", folder, kPrefix, seconds, host_name(), getpid(), count++);
}

// Seconds in the name of an event file; -1: it is none.
int64_t seconds_of(const std::string& name) {
  int64_t seconds = -1;
  if (!name.starts_with(kPrefix)) return -1;
  const std::string_view digits = std::string_view(name).substr(kPrefix.size());
  return parse_int(digits.substr(0, digits.find('.')), seconds) && seconds <= kMostSeconds ? seconds : -1;
}

}  // namespace

std::string tfrecord(std::string_view data) {
  std::string out;
  out.reserve(data.size() + 16);
  put_raw(out, static_cast<uint64_t>(data.size()));
  put_raw(out, masked_crc(out.data(), 8));
  out += data;
  put_raw(out, masked_crc(data.data(), data.size()));
  return out;
}

std::string event_file_version(double wall) {
  std::string out = event_head(wall, 0);
  put_bytes(out, 3, "brain.Event:2");
  return out;
}

std::string event_session_start(double wall, int64_t step) {
  std::string out = event_head(wall, step), log;
  put_int(log, 1, 1);  // START
  put_bytes(out, 7, log);
  return out;
}

std::string event_scalar(double wall, int64_t step, std::string_view tag, float value) {
  std::string v;
  put_bytes(v, 1, tag);
  put_key(v, 2, kFixed32);  // member of a oneof: written even if 0
  put_raw(v, value);
  return with_summary(event_head(wall, step), v);
}

std::string event_text(double wall, int64_t step, std::string_view tag, std::string_view text) {
  std::string size, shape, tensor, plugin, metadata, v;
  put_int(size, 1, 1);
  put_bytes(shape, 2, size);
  put_int(tensor, 1, 7);  // string
  put_bytes(tensor, 2, shape);
  put_bytes(tensor, 8, text);
  put_bytes(plugin, 1, "text");
  put_bytes(metadata, 1, plugin);
  put_int(metadata, 4, 2);  // tensor
  put_bytes(v, 1, tag);
  put_bytes(v, 8, tensor);
  put_bytes(v, 9, metadata);
  return with_summary(event_head(wall, step), v);
}

namespace {

void put_double(std::string& out, int field, double x) {
  put_key(out, field, kFixed64);
  put_raw(out, x);
}

void put_doubles(std::string& out, int field, const std::vector<double>& all) {
  std::string packed;
  for (const double x : all) put_raw(packed, x);
  put_bytes(out, field, packed);
}

// A summary whose content is in the metadata: hparams' values are empty float tensors.
std::string event_hparams(double wall, std::string_view tag, std::string_view content) {
  std::string shape, tensor, plugin, metadata, v;
  put_bytes(shape, 2, "");  // one dimension of size 0
  put_int(tensor, 1, 1);    // float
  put_bytes(tensor, 2, shape);
  put_bytes(plugin, 1, "hparams");
  put_bytes(plugin, 2, content);
  put_bytes(metadata, 1, plugin);
  put_int(metadata, 4, 2);  // tensor
  put_bytes(v, 1, tag);
  put_bytes(v, 8, tensor);
  put_bytes(v, 9, metadata);
  return with_summary(event_head(wall, 0), v);
}

}  // namespace

std::string event_histogram(double wall, int64_t step, std::string_view tag, const Histogram& h) {
  std::string histo, v;
  const double numbers[] = {h.min, h.max, h.count, h.sum, h.sum_squares};
  for (int i = 0; i < 5; ++i)
    if (numbers[i] != 0) put_double(histo, i + 1, numbers[i]);
  put_doubles(histo, 6, h.limits);
  put_doubles(histo, 7, h.buckets);
  put_bytes(v, 1, tag);
  put_bytes(v, 5, histo);
  return with_summary(event_head(wall, step), v);
}

std::string event_hparams_experiment(double wall, std::span<const HParam> settings,
                                     std::span<const std::string> metrics) {
  constexpr int kTypes[] = {3, 2, 1};  // float64, bool, string, in the order of HParam::value
  std::string experiment, content;
  for (const HParam& p : settings) {
    std::string info;
    put_bytes(info, 1, p.name);
    put_int(info, 4, kTypes[p.value.index()]);
    put_bytes(experiment, 4, info);
  }
  for (const std::string& tag : metrics) {
    std::string name, info;
    put_bytes(name, 2, tag);
    put_bytes(info, 1, name);
    put_bytes(experiment, 5, info);
  }
  put_bytes(content, 2, experiment);
  return event_hparams(wall, "_hparams_/experiment", content);
}

std::string event_hparams_start(double wall, std::span<const HParam> settings) {
  std::string start, content;
  for (const HParam& p : settings) {
    std::string value, entry;
    if (const auto* number = std::get_if<double>(&p.value)) put_double(value, 2, *number);
    if (const auto* text = std::get_if<std::string>(&p.value)) put_bytes(value, 3, *text);
    if (const auto* flag = std::get_if<bool>(&p.value)) put_key(value, 4, kVarint), put_varint(value, *flag);
    put_bytes(entry, 1, p.name);
    put_bytes(entry, 2, value);
    put_bytes(start, 1, entry);
  }
  put_double(start, 5, wall);
  put_bytes(content, 3, start);
  return event_hparams(wall, "_hparams_/session_start_info", content);
}

std::string event_hparams_end(double wall, bool success) {
  std::string end, content;
  put_int(end, 1, success ? 1 : 2);
  put_double(end, 2, wall);
  put_bytes(content, 4, end);
  return event_hparams(wall, "_hparams_/session_end_info", content);
}

double last_event_time(const std::string& path) {
  double latest = 0;
  try {
    const Fd file = open_to_read(path);
    struct stat info {};
    if (::fstat(file.get(), &info) != 0) return 0;
    char head[12 + 9];  // length and its checksum; field 1 of the event, a double
    for (uint64_t at = 0, length = 0, size = static_cast<uint64_t>(info.st_size); at + sizeof head <= size;) {
      if (::pread(file.get(), head, sizeof head, static_cast<off_t>(at)) != static_cast<ssize_t>(sizeof head)) break;
      std::memcpy(&length, head, sizeof length);
      if (length > size || at + 16 + length > size) break;
      double wall = 0;
      std::memcpy(&wall, head + 13, sizeof wall);
      if (length >= 9 && head[12] == 9 && wall > latest && wall <= static_cast<double>(kMostSeconds)) latest = wall;
      at += 16 + length;
    }
  } catch (const Error&) {  // unreadable: it does not order anything
  }
  return latest;
}

TensorBoardFile::Start TensorBoardFile::start_in(const std::string& folder, double wall) {
  std::string newest;
  std::error_code ec;
  int64_t named = -1;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    if (seconds_of(name) >= 0 && name > newest) newest = name, named = seconds_of(name);
  }
  if (newest.empty()) return {static_cast<int64_t>(wall), wall};
  const double begin = std::max(wall, last_event_time((fs::path(folder) / newest).string()));
  return {std::max(static_cast<int64_t>(begin), std::min(named + 1, kMostSeconds)), begin};
}

TensorBoardFile::TensorBoardFile(const std::string& folder, int64_t first_step, double wall)
    : TensorBoardFile(folder, first_step, wall, start_in(folder, wall)) {}

TensorBoardFile::TensorBoardFile(const std::string& folder, int64_t first_step, double wall, Start start)
    : ahead_(start.wall - wall),
      latest_(start.wall),
      file_(file_name(folder, start.seconds),
            tfrecord(event_file_version(latest_)) + tfrecord(event_session_start(latest_, first_step)),
            LogFile::Form::kFrames) {
  flush();
}

void TensorBoardFile::add(std::string_view event) {
  std::string record = tfrecord(event);
  waiting_ += record.size();
  file_.add(std::move(record));
  if (waiting_ > kFlushBytes) flush();
}

void TensorBoardFile::scalar(std::string_view tag, double value, int64_t step, double wall) {
  add(event_scalar(event_time(wall), step, tag, static_cast<float>(value)));
}

void TensorBoardFile::text(std::string_view tag, std::string_view text, int64_t step, double wall) {
  add(event_text(event_time(wall), step, tag, text));
}

void TensorBoardFile::histogram(std::string_view tag, const Histogram& h, int64_t step, double wall) {
  add(event_histogram(event_time(wall), step, tag, h));
}

void TensorBoardFile::flush() {
  waiting_ = 0;
  file_.flush();
}

}  // namespace gt
