#include "launch/observe/sinks/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cstring>

#include "kernels/core/hash/crc32c.h"
#include "kernels/core/host.h"

namespace gt {
namespace {

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

std::string file_name(const std::string& folder, double wall) {
  static std::atomic<int> count{0};  // distinguishes files that one process creates within a second
  return fmt::format("{}/events.out.tfevents.{:010}.{}.{}.{}", folder, static_cast<int64_t>(wall), host_name(),
                     getpid(), count++);
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

TensorBoardFile::TensorBoardFile(const std::string& folder, int64_t first_step, double wall)
    : file_(file_name(folder, wall),
            tfrecord(event_file_version(wall)) + tfrecord(event_session_start(wall, first_step)),
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
  add(event_scalar(wall, step, tag, static_cast<float>(value)));
}

void TensorBoardFile::text(std::string_view tag, std::string_view text, int64_t step, double wall) {
  add(event_text(wall, step, tag, text));
}

void TensorBoardFile::histogram(std::string_view tag, const Histogram& h, int64_t step, double wall) {
  add(event_histogram(wall, step, tag, h));
}

void TensorBoardFile::flush() {
  waiting_ = 0;
  file_.flush();
}

}  // namespace gt
