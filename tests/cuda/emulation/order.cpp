#include "tests/cuda/emulation/order.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#include "tests/cuda/emulation/emulate.h"
#include "tests/cuda/emulation/watch.h"

namespace gt::emulated {
namespace {

struct Streams {
  std::mutex mutex;
  std::map<cudaStream_t, uint32_t> number;
  std::vector<Clock> clock;     // by stream number; the next stream to take a freed number continues its clock
  std::vector<uint32_t> ended;  // stream numbers
  std::map<cudaEvent_t, Clock> event;
};

Streams& streams() {
  static Streams& s = *new Streams;  // never destroyed: streams may outlive static objects
  return s;
}

thread_local WorkItem work_here;
thread_local Clock host_here;

void join(Clock& into, const Clock& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

Clock& clock_of(Streams& all, cudaStream_t s) {
  const auto [it, is_new] = all.number.try_emplace(s, 0);
  if (is_new) {
    if (all.ended.empty()) {
      if (all.clock.size() > 255) die("more streams than the watch on memory can distinguish");
      all.ended.push_back(static_cast<uint32_t>(all.clock.size()));
      all.clock.emplace_back(all.clock.size() + 1);
    }
    it->second = all.ended.back();
    all.ended.pop_back();
  }
  return all.clock[it->second];
}

}  // namespace

const WorkItem& current_work_item() { return work_here; }

bool ignores(const char* kind) {
  static const char* const setting = std::getenv("GPTTRAIN_EMULATED_IGNORES");
  if (setting == nullptr) return false;
  const std::string text = setting;
  const size_t colon = text.find(':');
  if (text.substr(0, colon) != kind) return false;
  static std::atomic<long> matches{0};
  return colon == std::string::npos || ++matches == std::atol(setting + colon + 1);
}

namespace watch {

void begin_work(cudaStream_t s) {
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  Clock& clock = clock_of(all, s);
  const uint32_t number = all.number[s];
  join(clock, host_here);
  if (++clock[number] > 0xFFFFFF) die("more pieces of work than the watch on memory can number");
  work_here = {number << 24 | clock[number], clock};
}

void record(cudaEvent_t e, cudaStream_t s) {
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  Clock& clock = clock_of(all, s);
  join(clock, host_here);
  all.event[e] = clock;
}

void wait(cudaStream_t s, cudaEvent_t e) {
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  const auto it = all.event.find(e);
  if (it != all.event.end() && !ignores("streams")) join(clock_of(all, s), it->second);
}

void host_waits(cudaEvent_t e) {
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  if (const auto it = all.event.find(e); it != all.event.end()) join(host_here, it->second);
}

void host_waits(cudaStream_t s) {
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  join(host_here, clock_of(all, s));
}

void host_waits_for_all() {
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  for (const Clock& c : all.clock) join(host_here, c);
}

// Work of a closed stream counts as finished only for the next stream of its number.
void ends(cudaStream_t s) {
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  if (const auto it = all.number.find(s); it != all.number.end()) {
    all.ended.push_back(it->second);
    all.number.erase(it);
  }
}

void ends(cudaEvent_t e) {
  Streams& all = streams();
  const std::lock_guard lock(all.mutex);
  all.event.erase(e);
}

}  // namespace watch
}  // namespace gt::emulated
