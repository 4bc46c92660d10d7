// One pass over all inputs that keeps the lines with the lowest priority values (data/tokenizer/tokenizer_train.h).
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <tuple>

#include "data/prepare/json_line.h"
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

uint64_t priority_of(uint64_t seed, uint64_t path, uint64_t line, uint64_t inner = 0) {
  const uint64_t key[4] = {seed, path, line, inner};
  return XXH3_128bits(key, inner > 0 ? sizeof key : 3 * sizeof *key).high64;  // first 8 bytes of the canonical form
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

// Counts a line that was read.
void count(const LineReader::Line& line, Reading* all) {
  const std::lock_guard lock(all->mutex);
  all->bytes += static_cast<int64_t>(line.text.size());
  all->lines += line.complete;
  if (all->progress && all->bytes - all->reported > 4'000'000) {
    all->reported = all->bytes;
    all->progress({"read", all->bytes, all->lines,
                   std::chrono::duration<double>(std::chrono::steady_clock::now() - all->began).count()});
  }
}

// Reads one input. Text is read by lines of at most 1 MB, JSON lines as a whole, as data/prepare/prepare_chunks.h does.
class InputSampler {
 public:
  InputSampler(const std::string& path, uint64_t index, const std::string& json_key, Reading* all)
      : name_(path == "-" ? "standard input" : path), index_(index), key_(json_key), all_(*all) {
    LineReader reader(path, 1 << 20);
    const bool json = is_json_lines(path, reader.head());
    if (json) reader.limit_lines(kMaxJsonLine);
    for (LineReader::Line line; reader.next(&line);) {
      if (line.first) part_ = 0;
      count(line, all);
      json ? take_json(line) : take(line.text, static_cast<uint64_t>(line.number), 0);
    }
  }

 private:
  static constexpr int64_t kMaxJsonLine = int64_t{64} << 20;

  void take_json(const LineReader::Line& line) {
    const auto require = [&](bool good, const std::string& why) {
      GT_REQUIRE(good, Exit::kUsage, name_, " line ", line.number + 1, " byte ", line.begin, ": ", why,
                 "; mend the line or leave it out");
    };
    require(line.complete, cat("longer than ", kMaxJsonLine >> 20, " MiB"));
    if (line.text.find_first_not_of(" \t\r\n") == std::string_view::npos) return;
    valid_.clear();
    append_valid_utf8(line.text, &valid_);
    text_.clear();
    std::string why;
    require(json_text(valid_, key_, &text_, &why), why);
    uint64_t inner = 0;
    for (size_t at = 0; at < text_.size(); ++inner) {
      const size_t end = std::min(text_.find('\n', at), text_.size());
      take(std::string_view(text_).substr(at, end - at), static_cast<uint64_t>(line.number), inner);
      at = end + 1;
    }
  }

  // Offers a line, or a part of one, to the keeper.
  void take(std::string_view text, uint64_t line, uint64_t inner) {
    const uint64_t priority = priority_of(all_.seed, index_, line, inner);
    {
      const std::lock_guard lock(all_.mutex);
      if (!all_.keeper.admits(priority)) return;
    }
    clean_.clear();
    append_valid_utf8(text, &clean_);
    std::string_view rest = clean_;
    while (!rest.empty() && (rest.back() == '\n' || rest.back() == '\r')) rest.remove_suffix(1);
    for (; !rest.empty(); ++part_) {
      const size_t n = cut_of(rest);
      const std::lock_guard lock(all_.mutex);
      all_.keeper.add({priority, index_, line, part_, std::string(rest.substr(0, n))});
      rest.remove_prefix(n);
    }
  }

  const std::string name_;
  const uint64_t index_;
  const std::string& key_;
  Reading& all_;
  std::string valid_, text_, clean_;
  uint64_t part_ = 0;
};

}  // namespace

LineSample sample_lines(const std::vector<std::string>& names, double sample_mb, uint64_t seed, int threads,
                        const std::function<void(const TokenizerTrainProgress&)>& progress,
                        const std::string& json_key) {
  const auto inputs = expand_inputs(names);
  require_text(inputs);
  const auto budget = static_cast<int64_t>(sample_mb * 1e6);
  LineSample out;
  Reading all{Keeper(budget + kUnseenBytes), seed, progress};
  std::atomic<size_t> next{0};
  std::exception_ptr error;
  const auto work = [&] {  // the same lines are kept whichever thread reads a file
    try {
      for (size_t p; (p = next++) < inputs.size();) InputSampler(inputs[p].path, p, json_key, &all);
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
