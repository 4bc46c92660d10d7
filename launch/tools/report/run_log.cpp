#include "launch/tools/report/run_log.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/core/check.h"
#include "kernels/core/files.h"
#include "kernels/core/json.h"
#include "launch/options/near_path.h"

namespace gt {
namespace fs = std::filesystem;
using Json = nlohmann::json;

const char* logged_timer_name(size_t i) {
  return i == kPipelineTime ? "other" : kTimerNames[i];  // the one timer without a name gives its place to it
}

namespace {

constexpr size_t kLongestText = 4096;  // bytes of a text that is kept
constexpr size_t kMostRows = 2000;     // of a block or config

std::string bounded(std::string text, size_t most = kLongestText) {
  if (text.size() > most) {
    text.resize(most);
    while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xC0) == 0x80) text.pop_back();
    text += "…";
  }
  return text;
}

// Parses one line; a discarded value if it is no JSON, or nested so deeply that recursive functions would fail.
Json parse_line(std::string_view line) {
  constexpr int kDeepest = 64;
  return parse_json_if_valid<Json>(line, {.bytes = SIZE_MAX, .depth = kDeepest});
}

const Json* find(const Json& j, const char* key) {
  const auto it = j.find(key);
  return it == j.end() ? nullptr : &*it;
}

// log.jsonl writes non-finite numbers as strings.
double number(const Json& j, const char* key) {
  const Json* x = find(j, key);
  if (x == nullptr) return kUnknown;
  if (x->is_number()) return x->get<double>();
  if (!x->is_string()) return kUnknown;
  const std::string& s = x->get_ref<const std::string&>();
  return s == "inf" ? INFINITY : s == "-inf" ? -INFINITY : kUnknown;
}

int64_t integer(const Json& j, const char* key, int64_t otherwise) {
  const Json* x = find(j, key);
  constexpr double kMost = 9e15;
  if (x == nullptr || !x->is_number()) return otherwise;
  const auto value = x->get<double>();
  return std::isfinite(value) && std::fabs(value) < kMost ? static_cast<int64_t>(value) : otherwise;
}

std::string text(const Json& j, const char* key, size_t most = kLongestText) {
  const Json* x = find(j, key);
  return x != nullptr && x->is_string() ? bounded(x->get<std::string>(), most) : "";
}

std::string dumped(const Json& j) {
  constexpr size_t kShort = 400;
  return bounded(j.is_string() ? j.get<std::string>() : j.dump(-1, ' ', false, Json::error_handler_t::replace), kShort);
}

// Values of an object of objects as "section.key".
void flatten(const Json& j, const std::string& prefix, int depth, Rows& out) {
  constexpr int kDeepest = 8;
  for (const auto& [key, value] : j.items()) {
    if (out.size() >= kMostRows) return;
    const std::string name = bounded(prefix.empty() ? key : prefix + "." + key, 200);
    if (value.is_object() && !value.empty() && depth < kDeepest)
      flatten(value, name, depth + 1, out);
    else
      out.emplace_back(name, dumped(value));
  }
}

Rows rows(const Json& j, const char* key) {
  Rows out;
  const Json* x = find(j, key);
  if (x == nullptr || !x->is_object()) return out;
  for (const auto& [label, value] : x->items())
    if (out.size() < kMostRows && value.is_string())
      out.emplace_back(bounded(label, 200), bounded(value.get<std::string>()));
  return out;
}

MemoryBytes memory_bytes(const Json& j, const char* key) {
  MemoryBytes out{};
  const Json* x = find(j, key);
  if (x == nullptr || !x->is_object()) return out;
  for (size_t i = 0; i < out.size(); ++i) out[i] = std::max<int64_t>(0, integer(*x, kMemoryNames[i], 0));
  return out;
}

Timers timers_of(const Json& j) {
  Timers out{};
  if (!j.is_object()) return out;
  for (size_t i = 0; i < out.size(); ++i) {
    const double x = number(j, logged_timer_name(i));
    out[i] = std::isfinite(x) ? x : 0;
  }
  return out;
}

template <class Record>
void drop_from(std::vector<Record>& records, int64_t step) {
  while (!records.empty() && records.back().step >= step) records.pop_back();
}

}  // namespace

// Adds one record of log.jsonl to a RunLog.
struct RecordReader {
  RunLog& log;
  const Json& j;

  bool read() {
    const std::string type = text(j, "type", 32);
    if (type == "step") return step();
    if (type == "eval") return eval();
    if (type == "checkpoint") return checkpoint();
    if (type == "event") return event();
    if (type == "scalar") return scalar();
    if (type == "memory") return memory();
    if (type == "stages") return stages();
    if (type == "start") return start();
    return type == "end" && end();
  }

  bool step() {
    LoggedStep s{
        .step = integer(j, "step", -1), .time = number(j, "time"), .timers_step = integer(j, "timers_step", -1)};
    if (s.step < 0) return false;
    for (const StepMetric& m : step_metrics()) s.values.push_back(m.logged ? number(j, m.name) : kUnknown);
    if (const Json* timers = find(j, "timers")) {
      const Timers t = timers_of(*timers);
      for (size_t i = 0; i < t.size(); ++i) s.timers[i] = static_cast<float>(t[i]);
    }
    drop_from(log.steps_, s.step);  // the last record of a step counts; one further back is a rollback
    // The newest step stays until the next one, also where thinning will drop it.
    if (!log.steps_.empty() && log.steps_.back().step % log.stride_ != 0) log.steps_.pop_back();
    log.steps_.push_back(s);
    if (log.steps_.size() > RunLog::kMostSteps) log.thin();
    return true;
  }

  bool eval() {
    const EvalRecord e{.step = integer(j, "step", -1),
                       .time = number(j, "time"),
                       .loss = number(j, "loss"),
                       .seconds = number(j, "seconds"),
                       .tokens = integer(j, "tokens", 0)};
    drop_from(log.evals_, e.step);
    if (log.evals_.size() < RunLog::kMostSteps) log.evals_.push_back(e);
    return e.step >= 0;
  }

  bool checkpoint() {
    const SavedRecord r{.step = integer(j, "step", -1),
                        .time = number(j, "time"),
                        .stall_seconds = number(j, "stall_seconds"),
                        .write_seconds = number(j, "write_seconds"),
                        .bytes = integer(j, "bytes", 0)};
    if (log.saves_.size() < RunLog::kMostSteps) log.saves_.push_back(r);
    return r.step >= 0;
  }

  bool event() {
    if (log.events_.size() >= RunLog::kMostEvents) return ++log.dropped_events_, true;
    log.events_.push_back({.step = integer(j, "step", 0),
                           .time = number(j, "time"),
                           .warning = text(j, "level", 32) == "warning",
                           .text = text(j, "text")});
    return true;
  }

  bool scalar() {
    const std::string tag = text(j, "tag", 200);
    const int64_t step = integer(j, "step", -1);
    if (tag.empty() || step < 0) return false;
    if ((log.curves_.size() >= RunLog::kMostCurves && !log.curves_.count(tag)) || log.points_ >= RunLog::kMostPoints)
      return true;
    LoggedCurve& curve = log.curves_[tag];
    for (; !curve.steps.empty() && curve.steps.back() >= step; --log.points_) {
      curve.steps.pop_back();
      curve.values.pop_back();
    }
    curve.steps.push_back(step);
    curve.values.push_back(number(j, "value"));
    ++log.points_;
    return true;
  }

  bool memory() {
    const Json* ranks = find(j, "ranks");
    if (ranks == nullptr || !ranks->is_array()) return false;
    log.memory_.clear();
    for (const Json& r : *ranks)
      if (r.is_object() && log.memory_.size() < MemoryRecord::kMostRanks)
        log.memory_.push_back({.rank = integer(r, "rank", 0),
                               .stage = integer(r, "stage", 0),
                               .planned = memory_bytes(r, "planned"),
                               .measured = memory_bytes(r, "measured"),
                               .process_bytes = integer(r, "process_bytes", 0)});
    return true;
  }

  bool stages() {
    const Json* list = find(j, "stages");
    if (list == nullptr || !list->is_array()) return false;
    constexpr size_t kMostStages = 1024;
    auto all = std::make_shared<std::vector<Timers>>();
    for (const Json& s : *list)
      if (all->size() < kMostStages) all->push_back(timers_of(s));
    log.stages_ = {.step = integer(j, "step", 0), .step_seconds = number(j, "step_seconds"), .stages = std::move(all)};
    return true;
  }

  bool start() {
    LoggedStart s{.time = number(j, "time"),
                  .version = text(j, "version"),
                  .command = text(j, "command"),
                  .layout = text(j, "layout", size_t{1} << 16),
                  .environment = text(j, "environment"),
                  .first_step = integer(j, "first_step", 1),
                  .total_steps = integer(j, "total_steps", 0),
                  .resumed_from = integer(j, "resumed_from", -1),
                  .world = integer(j, "world", 1),
                  .block = rows(j, "summary")};
    if (const Json* config = find(j, "config"); config != nullptr && config->is_object())
      flatten(*config, "", 0, s.config);
    log.discard_from(s.first_step);
    log.ended_ = false;
    if (log.starts_.size() >= RunLog::kMostStarts) log.starts_.erase(log.starts_.begin());
    log.starts_.push_back(std::move(s));
    return true;
  }

  bool end() {
    log.end_ = {.time = number(j, "time"),
                .seconds = number(j, "seconds"),
                .goodput = number(j, "goodput"),
                .reason = text(j, "reason"),
                .exit_code = integer(j, "exit_code", 0),
                .step = integer(j, "step", 0),
                .block = rows(j, "summary")};
    return log.ended_ = true;
  }
};

RunLog::RunLog(std::string run_dir) : dir_(std::move(run_dir)) {
  std::error_code ec;
  if (!fs::is_directory(dir_, ec)) {
    const bool file = fs::exists(dir_, ec);
    const std::string near = file ? std::string() : near_path(dir_);
    throw Error(cat(dir_, ": expected a run folder, found ", file ? "a file" : "nothing",
                    near.empty() ? "" : "; did you mean " + near + "?"),
                Exit::kUsage);
  }
  GT_REQUIRE(fs::exists(dir_ + "/log.jsonl", ec), Exit::kUsage, dir_,
             ": expected a run folder with log.jsonl, found none");
  open_to_read(dir_ + "/log.jsonl");
}

std::string RunLog::name() const {
  const fs::path p = fs::path(dir_).lexically_normal();
  const std::string name = (p.has_filename() ? p : p.parent_path()).filename().string();
  return bounded(name.empty() || name == "." ? dir_ : name, 100);
}

bool RunLog::read() {
  const Fd log = open_to_read(dir_ + "/log.jsonl");
  const int64_t size = lseek(log.get(), 0, SEEK_END);
  if (size < at_) *this = RunLog(dir_);  // recreated
  bool any = false;
  std::string block(size_t{1} << 20, '\0');
  for (ssize_t n; (n = pread(log.get(), block.data(), block.size(), at_)) > 0; at_ += n) {
    std::string_view left(block.data(), static_cast<size_t>(n));
    for (size_t end; (end = left.find('\n')) != std::string_view::npos; left.remove_prefix(end + 1)) {
      rest_ += left.substr(0, end);
      if (overlong_ || rest_.size() > kLongestLine)
        ++bad_lines_;
      else
        process_line(rest_);
      overlong_ = false;
      rest_.clear();
      any = true;
    }
    if (rest_.size() + left.size() > kLongestLine) overlong_ = true, rest_.clear();
    if (!overlong_) rest_ += left;
  }
  return any;
}

void RunLog::process_line(std::string_view line) {
  if (line.empty()) return;
  const Json j = parse_line(line);
  if (!j.is_object() || !RecordReader{*this, j}.read()) ++bad_lines_;
}

void RunLog::thin() {
  stride_ *= 2;
  const int64_t last = steps_.back().step;
  std::erase_if(steps_, [&](const LoggedStep& s) { return s.step % stride_ != 0 && s.step != last; });
}

// A start makes these steps again, so that no curve folds back.
void RunLog::discard_from(int64_t step) {
  drop_from(steps_, step);
  drop_from(evals_, step);
  for (auto& [tag, curve] : curves_)
    for (; !curve.steps.empty() && curve.steps.back() >= step; --points_) {
      curve.steps.pop_back();
      curve.values.pop_back();
    }
}

std::vector<LoggedRestart> RunLog::restarts() const {
  constexpr size_t kMost = 1000;
  std::vector<LoggedRestart> out;
  const std::string all = read_if_there(dir_ + "/restarts.jsonl", int64_t{16} << 20);
  for (size_t at = 0, end; at < all.size() && out.size() < kMost; at = end + 1) {
    end = std::min(all.find('\n', at), all.size());
    const Json j = parse_line(std::string_view(all).substr(at, end - at));
    if (!j.is_object()) continue;
    std::string what;
    for (const auto& [key, value] : j.items())
      if (key != "time" && key != "action" && key != "seconds_lost" && what.size() < kLongestText)
        what += (what.empty() ? "" : ", ") + bounded(key, 100) + " " + dumped(value);
    const Json* time = find(j, "time");
    out.push_back({time != nullptr ? dumped(*time) : "", text(j, "action", 100), what, number(j, "seconds_lost")});
  }
  return out;
}

std::string newest_trace(const std::string& run_dir) {
  std::string best;
  int64_t newest = -1;
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(run_dir, ec)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("trace-") || !name.ends_with(".json.gz")) continue;
    const std::string digits = name.substr(6, name.size() - 14);
    if (digits.empty() || digits.size() > 15 || digits.find_first_not_of("0123456789") != std::string::npos) continue;
    if (const int64_t step = std::stoll(digits); step > newest) newest = step, best = entry.path().string();
  }
  return best;
}

namespace {

void take_event(const Json& j, size_t most, TraceSlices& out) {
  const std::string phase = text(j, "ph", 8);
  const Json* args = find(j, "args");
  const bool has_args = args != nullptr && args->is_object();
  const auto rank = static_cast<int>(std::clamp<int64_t>(integer(j, "pid", 0), 0, 1 << 20));
  constexpr size_t kMostRanks = 4096;
  if (phase == "M" && text(j, "name", 64) == "process_name" && has_args && out.ranks.size() < kMostRanks)
    out.ranks[rank] = text(*args, "name", 200);
  if (phase != "X" || !has_args || out.slices.size() >= most) return;
  TraceSlice s{.rank = rank,
               .track = static_cast<int>(std::clamp<int64_t>(integer(j, "tid", 0), 0, 100)),
               .step = integer(*args, "step", 0),
               .microbatch = integer(*args, "microbatch", -1),
               .begin = 1e-6 * number(j, "ts"),
               .seconds = 1e-6 * number(j, "dur"),
               .category = text(j, "cat", 64)};
  s.waits = text(j, "name", 64).starts_with("wait ");
  if (std::isfinite(s.begin) && std::isfinite(s.seconds) && s.seconds >= 0) out.slices.push_back(std::move(s));
}

}  // namespace

TraceSlices read_trace(const std::string& path, size_t most) {
  constexpr size_t kMostBytes = size_t{1} << 28, kLongest = size_t{1} << 16;
  Fd fd = open_to_read(path);
  const gzFile file = gzdopen(fd.release(), "rb");
  GT_CHECK(file != nullptr);
  TraceSlices out;
  std::string line;
  std::string block(size_t{1} << 16, '\0');
  size_t total = 0;
  int n = 0;
  // One event a line, after a line with everything else.
  while (total < kMostBytes && (n = gzread(file, block.data(), static_cast<unsigned>(block.size()))) > 0) {
    total += static_cast<size_t>(n);
    for (const char c : std::string_view(block.data(), static_cast<size_t>(n))) {
      if (c != '\n') {
        if (line.size() < kLongest) line += c;
        continue;
      }
      if (!line.empty() && line.back() == ',') line.pop_back();
      if (const Json j = parse_line(line); j.is_object()) take_event(j, most, out);
      line.clear();
    }
  }
  gzclose(file);
  GT_REQUIRE(n >= 0, Exit::kDamaged, path, ": expected a gzip file, found damaged data");
  return out;
}

}  // namespace gt
