#include "launch/observe/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>

#include "kernels/core/out_of_memory.h"

namespace gt {

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

EventRecord create_event(int64_t step, const std::string& text, bool warning) {
  EventRecord e{.step = step, .time = wall_seconds(), .warning = warning};
  const size_t n = std::min(text.size(), e.text.size() - 1);
  std::memcpy(e.text.data(), text.data(), n);
  return e;
}

ScalarRecord make_scalar(int64_t step, const std::string& tag, double value) {
  ScalarRecord r{.step = step, .time = wall_seconds(), .value = value};
  std::memcpy(r.tag.data(), tag.data(), std::min(tag.size(), r.tag.size() - 1));
  return r;
}

MetricsWriter::MetricsWriter(std::vector<std::unique_ptr<Sink>> sinks) : sinks_(std::move(sinks)), ring_(kCapacity) {
  thread_ = std::thread([this] { run(); });
}

MetricsWriter::~MetricsWriter() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

// Calls every enabled sink. A sink that throws is disabled, and the others get the failure as an event.
void MetricsWriter::each_sink(const std::function<void(Sink&)>& call) {
  std::lock_guard lock(sink_mutex_);
  for (size_t i = 0; i < sinks_.size(); ++i) {
    if (!sinks_[i]) continue;
    std::string failure;
    try {
      call(*sinks_[i]);
      continue;
    } catch (const std::exception& e) { failure = fmt::format("{} is disabled: {}", sinks_[i]->name(), e.what()); }
    sinks_[i].reset();
    failures_.push_back(failure);
    for (auto& other : sinks_) {
      try {
        if (other) other->event(create_event(0, failure, true));
      } catch (const std::exception&) {  // it will fail again in a later call and be disabled then
      }
    }
  }
}

void MetricsWriter::start(const StartInfo& info) {
  each_sink([&](Sink& s) { s.start(info); });
  flush_sinks();
}

void MetricsWriter::flush_sinks() {
  std::vector<std::string> notices;
  each_sink([&](Sink& s) {
    s.flush();
    for (std::string& text : s.notices()) notices.push_back(std::move(text));
  });
  for (const std::string& text : notices) warn(0, text);
}

void MetricsWriter::put(const Record& record, bool droppable) {
  {
    std::lock_guard lock(mutex_);
    if (size_ >= (droppable ? kCapacity - kCapacity / 8 : kCapacity)) {
      ++dropped_;
      return;
    }
    ring_[(head_ + size_++) % kCapacity] = record;
    ++pushed_;
  }
  wake_.notify_one();
}

void MetricsWriter::deliver(const Record& record) {
  each_sink([&](Sink& s) {
    if (const auto* r = std::get_if<StepRecord>(&record)) s.step(*r);
    if (const auto* r = std::get_if<EvalRecord>(&record)) s.eval(*r);
    if (const auto* r = std::get_if<SavedRecord>(&record)) s.saved(*r);
    if (const auto* r = std::get_if<EventRecord>(&record)) s.event(*r);
    if (const auto* r = std::get_if<ScalarRecord>(&record)) s.scalar(*r);
    if (const auto* r = std::get_if<MemoryRecord>(&record)) s.memory(*r);
    if (const auto* r = std::get_if<StagesRecord>(&record)) s.stages(*r);
    if (const auto* r = std::get_if<HistogramRecord>(&record)) s.histogram(*r);
  });
}

void MetricsWriter::run() {
  const MemoryPurpose purpose("the logs");
  using Clock = std::chrono::steady_clock;
  constexpr auto kFlushEvery = std::chrono::seconds(1);
  auto flushed = Clock::now();
  bool dirty = false;
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto ready = [&] { return size_ > 0 || stop_ || requested_ > flushed_; };
    if (dirty)
      wake_.wait_until(lock, flushed + kFlushEvery, ready);
    else
      wake_.wait(lock, ready);
    if (size_ == 0 && stop_ && !dirty) return;
    busy_ = true;
    const bool have = size_ > 0;
    Record record;
    if (have) {
      record = ring_[head_];
      head_ = (head_ + 1) % kCapacity;
      --size_;
      ++delivered_;
    }
    const int64_t delivered = delivered_;
    const bool last = stop_ && size_ == 0, requested = requested_ > flushed_ && delivered >= requested_;
    lock.unlock();
    if (have) deliver(record), dirty = true;
    const bool soon = have && !std::holds_alternative<StepRecord>(record) &&
                      !std::holds_alternative<ScalarRecord>(record) && !std::holds_alternative<HistogramRecord>(record);
    if (dirty && (last || soon || requested || Clock::now() - flushed >= kFlushEvery)) {
      flush_sinks();
      flushed = Clock::now();
      dirty = false;
    }
    lock.lock();
    busy_ = false;
    if (!dirty) flushed_ = delivered;
    idle_.notify_all();
  }
}

void MetricsWriter::drain(std::unique_lock<std::mutex>& lock) {
  idle_.wait(lock, [&] { return size_ == 0 && !busy_; });
}

bool MetricsWriter::flush(std::chrono::seconds limit) {
  std::unique_lock lock(mutex_);
  const int64_t target = pushed_;
  requested_ = std::max(requested_, target);
  wake_.notify_one();
  return idle_.wait_for(lock, limit, [&] { return flushed_ >= target; });
}

void MetricsWriter::end(const EndInfo& info) {
  EndInfo full = info;
  flush();
  {
    std::unique_lock lock(mutex_);
    drain(lock);
    for (const Warning& w : warnings_)
      full.rows.emplace_back("warning", w.count > 1 ? fmt::format("{} ({} times)", w.text, w.count) : w.text);
    if (dropped_ > 0)
      full.rows.emplace_back("dropped", fmt::format("{} log records: the sinks were slower than the run", dropped_));
  }
  for (const std::string& f : failures()) full.rows.emplace_back("log", f);
  each_sink([&](Sink& s) { s.end(full); });
  flush_sinks();
}

void MetricsWriter::warn(int64_t step, const std::string& text, const std::string& key) {
  {
    std::lock_guard lock(mutex_);
    const std::string& name = key.empty() ? text : key;
    auto known = std::find_if(warnings_.begin(), warnings_.end(), [&](const Warning& w) { return w.key == name; });
    if (known == warnings_.end()) known = warnings_.insert(known, {name, text});
    ++known->count;
    if (std::exchange(known->quiet, true)) return;
  }
  push(create_event(step, text, true));
}

void MetricsWriter::rearm(const std::string& key) {
  std::lock_guard lock(mutex_);
  for (Warning& w : warnings_)
    if (w.key == key) w.quiet = false;
}

int64_t MetricsWriter::dropped() const {
  std::lock_guard lock(mutex_);
  return dropped_;
}

std::vector<std::string> MetricsWriter::failures() const {
  std::lock_guard lock(sink_mutex_);
  return failures_;
}

std::string MetricsWriter::unwritten() const {
  std::lock_guard lock(sink_mutex_);
  std::vector<std::string> all = failures_;
  for (const auto& sink : sinks_)
    if (sink && !sink->unwritten().empty()) all.push_back(sink->unwritten());
  return fmt::format("{}", fmt::join(all, "; "));
}

}  // namespace gt
