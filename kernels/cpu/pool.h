// The thread pool of a rank: static partitioning, the caller participates, a short spin and then a futex. Every CPU
// kernel runs on it, oneDNN included. Deterministic: which thread runs which indices is a function of (n, grain,
// threads) alone.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace gt::cpu {

// Non-owning reference to a callable: two words, no heap. The callee must not keep it beyond the call.
template <class Signature>
class FunctionRef;
template <class R, class... A>
class FunctionRef<R(A...)> {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef> && std::is_invocable_r_v<R, F&, A...>)
      FunctionRef(F&& f)  // NOLINT(google-explicit-constructor): made to be passed a lambda
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, A... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(std::forward<A>(args)...);
        }) {}
  R operator()(A... args) const { return call_(object_, std::forward<A>(args)...); }

 private:
  void* object_;
  R (*call_)(void*, A...);
};

// Body of a parallel loop: indices [begin, end), thread index in [0, threads).
using RangeBody = FunctionRef<void(int64_t begin, int64_t end, int thread)>;

class ThreadPool {
 public:
  // `threads` includes the caller: threads - 1 workers are started. `may_spin` false: idle threads sleep at once. They
  // also do so while the pools of this process have more threads in total than it has cores.
  explicit ThreadPool(int threads = 1, bool may_spin = true);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Calls body on disjoint ranges that cover [0, n): at most one per thread, in thread order, each starting on a
  // multiple of `grain` (>= 1), as equal in size as grains allow. Blocks until all are done, then rethrows the
  // exception of the lowest thread. A nested call runs inline on its thread. One job at a time: a pool belongs to one
  // stream, and a stream to one calling thread.
  void parallel_for(int64_t n, int64_t grain, RangeBody body);

 private:
  void work(int thread);
  void run_share(int thread) noexcept;
  template <class Ready>
  void await(const std::atomic<uint32_t>& word, int& spin, Ready ready) const;

  const int threads_;
  const bool may_spin_;
  // The current job: written by the caller before it increments `generation_`, read by workers afterwards.
  const RangeBody* body_ = nullptr;
  int64_t n_ = 0, grain_ = 1;
  int shares_ = 0;
  bool stop_ = false;
  int caller_spin_ = 0;  // us
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<uint32_t> pending_{0};
  std::vector<std::exception_ptr> errors_;  // one per thread
  std::vector<std::thread> workers_;
};

// Cores that this process may run on (its affinity mask), at least 1.
int usable_cores();

}  // namespace gt::cpu
