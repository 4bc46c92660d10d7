// The one small thread pool of a rank: static split, the caller takes part, a short spin and then a futex. Every CPU
// kernel runs on it, oneDNN included. It knows nothing of tensors, and it hands out no work by chance: which thread
// runs which indices is a function of (n, grain, threads) alone.
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

// A borrowed callable: two words, no heap. The callee must not outlive the call it is passed to.
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

// What a thread is given: indices [begin, end), and its number in [0, threads).
using RangeBody = FunctionRef<void(int64_t begin, int64_t end, int thread)>;

class ThreadPool {
 public:
  // `threads` counts the caller: threads - 1 workers are started; 1 starts none. `may_spin` false: idle threads go to
  // sleep at once. They do so too while the pools of this process together have more threads than it has cores.
  explicit ThreadPool(int threads = 1, bool may_spin = true);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Calls body on disjoint ranges that cover [0, n): at most one a thread, in thread order, each starting on a multiple
  // of `grain` (>= 1), sizes as equal as grains allow. Returns when all are done. The exception of the lowest thread is
  // rethrown here, after all threads have finished. From inside a body it runs inline, on the thread it is called from.
  // One job at a time: a pool belongs to one stream, and a stream to one calling thread.
  void parallel_for(int64_t n, int64_t grain, RangeBody body);

 private:
  void work(int thread);
  void run_share(int thread) noexcept;
  template <class Ready>
  void await(const std::atomic<uint32_t>& word, Ready ready) const;

  const int threads_;
  const bool may_spin_;
  // The job, written by the caller before `generation_` is raised, read by workers after they see it.
  const RangeBody* body_ = nullptr;
  int64_t n_ = 0, grain_ = 1;
  int shares_ = 0;
  bool stop_ = false;
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<uint32_t> pending_{0};
  std::vector<std::exception_ptr> errors_;  // one a thread
  std::vector<std::thread> workers_;
};

// Cores that this process may run on (its affinity mask), at least 1.
int usable_cores();

}  // namespace gt::cpu
