// Shared by the programs of the tour: claims that are checked while they are printed, and tensors on the CPU.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/memory.h"
#include "parallel/comm/threads/thread_group.h"

namespace gt::tour {

// Prints the claim; ends the program with 1 if it does not hold.
inline void claim(bool holds, const std::string& what) {
  std::printf("  %s %s\n", holds ? "ok  " : "FALSE", what.c_str());
  if (!holds) std::exit(1);
}

// Memory for tensors on the CPU: a Tensor is a view and owns nothing.
class Host {
 public:
  Tensor tensor(Shape s, DType t = DType::kF32) {
    return buffers_.emplace_back(s.numel() * size_of(t), Device{}, *cpu_backend().device).tensor(s, t);
  }
  Tensor of(Shape s, std::initializer_list<float> values) {
    const Tensor t = tensor(s);
    std::copy(values.begin(), values.end(), t.as<float>());
    return t;
  }

 private:
  std::deque<Buffer> buffers_;
};

// A folder that lasts as long as this object.
class ScratchFolder {
 public:
  ScratchFolder() : path_((std::filesystem::temp_directory_path() / "gpttrain-tour-XXXXXX").string()) {
    GT_REQUIRE(mkdtemp(path_.data()) != nullptr, Exit::kIo, path_, ": cannot be made");
  }
  ~ScratchFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Runs `rank(factory)` on `n` threads of this process, each a rank of its own; rethrows the first error.
inline void on_ranks(int n, const std::function<void(GroupFactory&)>& rank) {
  ThreadWorld world(n, std::chrono::seconds(60));
  std::vector<std::thread> threads;
  std::exception_ptr first;
  for (int r = 0; r < n; ++r)
    threads.emplace_back([&, r] {
      try {
        const auto factory = world.factory(r);
        rank(*factory);
      } catch (const Error& e) {
        world.abort(r, e.what(), e.code());  // wakes the ranks that wait for this one
        if (world.failed_rank() == r) first = std::current_exception();
      }
    });
  for (std::thread& t : threads) t.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace gt::tour
