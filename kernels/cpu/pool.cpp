#include "kernels/cpu/pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>

#include "kernels/cpu/signals_blocked.h"

namespace gt::cpu {
namespace {

// At most about what it costs to wake a sleeping thread: 40 us of the caller and 60 to 100 us until the thread runs.
constexpr int kLeastSpin = 50, kMostSpin = 200;  // us

// Threads of all pools with workers in this process, so ranks that are threads of one process account for each other. A
// single-threaded pool never waits; its caller is counted by its larger pool, if any.
std::atomic<int> live_threads{0};

// Pool and thread index that the current thread works for: a nested call runs inline.
struct Inside {
  const ThreadPool* pool = nullptr;
  int thread = 0;
};
thread_local Inside inside;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

int usable_cores() {
  static const int cores = [] {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }();
  return cores;
}

ThreadPool::ThreadPool(int threads, bool may_spin)
    : threads_(std::max(1, threads)),
      may_spin_(may_spin && threads_ <= usable_cores()),
      caller_spin_(kLeastSpin),
      errors_(static_cast<size_t>(threads_)) {
  if (threads_ > 1) live_threads += threads_;
  workers_.reserve(static_cast<size_t>(threads_ - 1));
  const SignalsBlocked in_workers;
  for (int t = 1; t < threads_; ++t) workers_.emplace_back([this, t] { work(t); });
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  if (threads_ > 1) live_threads -= threads_;
}

// Waits until ready(word): spins up to `spin` us unless cores are oversubscribed, then sleeps. `spin` doubles with each
// success and halves with each failure: beside other programs, the thread waited for may have no core.
template <class Ready>
void ThreadPool::await(const std::atomic<uint32_t>& word, int& spin, Ready ready) const {
  if (may_spin_ && live_threads.load(std::memory_order_relaxed) <= usable_cores()) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(spin);
    do {
      for (int i = 0; i < 32; ++i) {
        if (ready(word.load(std::memory_order_acquire))) {
          spin = std::min(kMostSpin, 2 * spin);
          return;
        }
        relax();
      }
    } while (std::chrono::steady_clock::now() < until);
    spin = std::max(kLeastSpin, spin / 2);
  }
  for (uint32_t value = word.load(std::memory_order_acquire); !ready(value);
       value = word.load(std::memory_order_acquire)) {
    word.wait(value, std::memory_order_acquire);
  }
}

void ThreadPool::work(int thread) {
  inside = {this, thread};
  int spin = kLeastSpin;
  for (uint32_t last = 0;;) {
    await(generation_, spin, [last](uint32_t now) { return now != last; });
    ++last;  // the caller waits for every worker before the next job, so none is skipped
    if (stop_) return;
    run_share(thread);
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
  }
}

void ThreadPool::run_share(int thread) noexcept {
  if (thread >= shares_) return;
  const int64_t grains = (n_ + grain_ - 1) / grain_;
  const int64_t begin = grains * thread / shares_ * grain_;
  const int64_t end = std::min(n_, grains * (thread + 1) / shares_ * grain_);
  try {
    (*body_)(begin, end, thread);
  } catch (...) { errors_[static_cast<size_t>(thread)] = std::current_exception(); }
}

void ThreadPool::parallel_for(int64_t n, int64_t grain, RangeBody body) {
  if (n <= 0) return;
  const bool nested = inside.pool == this;
  if (threads_ == 1 || nested || n <= grain) return body(0, n, nested ? inside.thread : 0);
  body_ = &body;
  n_ = n;
  grain_ = std::max<int64_t>(1, grain);
  shares_ = static_cast<int>(std::min<int64_t>(threads_, (n + grain_ - 1) / grain_));
  pending_.store(static_cast<uint32_t>(threads_ - 1), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();

  const Inside outer = std::exchange(inside, Inside{this, 0});
  run_share(0);
  inside = outer;
  await(pending_, caller_spin_, [](uint32_t left) { return left == 0; });
  for (std::exception_ptr& error : errors_) {
    if (error) {
      std::exception_ptr first = std::exchange(error, nullptr);
      for (std::exception_ptr& rest : errors_) rest = nullptr;
      std::rethrow_exception(first);
    }
  }
}

}  // namespace gt::cpu
