// One pass over all inputs that keeps the lines with the lowest priority values (data/tokenizer/tokenizer_train.h).
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <tuple>

#include "data/prepare/text_source.h"
#include "data/tokenizer/tokenizer_train.h"
#include "data/tokenizer/utf8.h"
#include "kernels/core/check.h"

namespace gt {
namespace {

constexpr size_t kMaxLine = 4096;
constexpr int64_t kUnseenBytes = 1'000'000;

auto rank_of(const SampledLine& l) { return std::tuple(l.priority, l.path, l.line, l.part); }
auto order_key(const SampledLine& l) { return std::tuple(l.path, l.line, l.part); }

uint64_t priority_of(uint64_t seed, uint64_t path, uint64_t line) {
  const uint64_t key[3] = {seed, path, line};
  return XXH3_128bits(key, sizeof key).high64;  // first 8 bytes of the canonical form
}

// Keeps the smallest set of lines, by rank, whose total size reaches the budget.
class Keeper {
 public:
  explicit Keeper(int64_t budget) : budget_(budget) {}
  bool admits(uint64_t priority) const {
    return bytes_ < budget_ || heap_.empty() || priority <= heap_.front().priority;
  }
  void add(SampledLine l) {
    bytes_ += static_cast<int64_t>(l.text.size()) + 1;
    heap_.push_back(std::move(l));
    std::push_heap(heap_.begin(), heap_.end(), less);
    while (bytes_ - static_cast<int64_t>(heap_.front().text.size()) - 1 >= budget_) {
      bytes_ -= static_cast<int64_t>(heap_.front().text.size()) + 1;
      std::pop_heap(heap_.begin(), heap_.end(), less);
      heap_.pop_back();
    }
  }
  std::vector<SampledLine> take() {
    std::sort(heap_.begin(), heap_.end(), less);
    return std::move(heap_);
  }

 private:
  static bool less(const SampledLine& a, const SampledLine& b) { return rank_of(a) < rank_of(b); }
  int64_t budget_, bytes_ = 0;
  std::vector<SampledLine> heap_;
};

// Truncates to 4096 bytes, after the last blank if one is in the second half, else at a character boundary.
size_t cut_of(std::string_view s) {
  if (s.size() <= kMaxLine) return s.size();
  const size_t blank = s.substr(0, kMaxLine).rfind(' ');
  return blank != std::string_view::npos && blank >= kMaxLine / 2 ? blank : utf8_cut(s, kMaxLine);
}

// Shared state of the reader threads.
struct Reading {
  Keeper keeper;
  uint64_t seed;
  const std::function<void(const TokenizerTrainProgress&)>& progress;
  std::mutex mutex;
  int64_t bytes = 0, lines = 0, reported = 0;
  std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
};

// Counts a line and returns whether the keeper accepts it.
bool offer(const LineReader::Line& line, uint64_t priority, Reading* all) {
  const std::lock_guard lock(all->mutex);
  all->bytes += static_cast<int64_t>(line.text.size());
  all->lines += line.complete;
  if (all->progress && all->bytes - all->reported > 4'000'000) {
    all->reported = all->bytes;
    all->progress({"read", all->bytes, all->lines,
                   std::chrono::duration<double>(std::chrono::steady_clock::now() - all->began).count()});
  }
  return all->keeper.admits(priority);
}

void read_input(const std::string& path, uint64_t index, Reading* all) {
  LineReader reader(path, 1 << 20);
  LineReader::Line line;
  std::string clean;
  uint64_t part = 0;
  while (reader.next(&line)) {
    if (line.first) part = 0;
    const uint64_t priority = priority_of(all->seed, index, static_cast<uint64_t>(line.number));
    if (!offer(line, priority, all)) continue;
    clean.clear();
    append_valid_utf8(line.text, &clean);
    std::string_view rest = clean;
    while (!rest.empty() && (rest.back() == '\n' || rest.back() == '\r')) rest.remove_suffix(1);
    for (; !rest.empty(); ++part) {
      const size_t n = cut_of(rest);
      const std::lock_guard lock(all->mutex);
      all->keeper.add({priority, index, static_cast<uint64_t>(line.number), part, std::string(rest.substr(0, n))});
      rest.remove_prefix(n);
    }
  }
}

}  // namespace

LineSample sample_lines(const std::vector<std::string>& names, double sample_mb, uint64_t seed, int threads,
                        const std::function<void(const TokenizerTrainProgress&)>& progress) {
  const auto inputs = expand_inputs(names);
  const auto budget = static_cast<int64_t>(sample_mb * 1e6);
  LineSample out;
  Reading all{Keeper(budget + kUnseenBytes), seed, progress};
  std::atomic<size_t> next{0};
  std::exception_ptr error;
  const auto work = [&] {  // the same lines are kept whichever thread reads a file
    try {
      for (size_t p; (p = next++) < inputs.size();) read_input(inputs[p].path, p, &all);
    } catch (...) {
      next = inputs.size();
      const std::lock_guard lock(all.mutex);
      if (!error) error = std::current_exception();
    }
  };
  std::vector<std::thread> pool;
  for (size_t i = 1; i < std::min(static_cast<size_t>(threads), inputs.size()); ++i) pool.emplace_back(work);
  work();
  for (auto& t : pool) t.join();
  if (error) std::rethrow_exception(error);
  out.bytes_read = all.bytes;
  out.lines_read = all.lines;
  int64_t used = 0, unseen = 0;
  bool full = false;  // the first line that does not fit ends the trainer's share
  for (SampledLine& l : all.keeper.take()) {
    const auto bytes = static_cast<int64_t>(l.text.size()) + 1;
    full = full || used + bytes > budget;
    if (!full) {
      used += bytes;
      out.train.push_back(std::move(l));
    } else if (unseen + bytes <= kUnseenBytes) {
      unseen += bytes;
      out.unseen.push_back(std::move(l));
    }
  }
  for (auto* list : {&out.train, &out.unseen})
    std::sort(list->begin(), list->end(),
              [](const SampledLine& a, const SampledLine& b) { return order_key(a) < order_key(b); });
  return out;
}

}  // namespace gt
