// Adapter of launch/ranks/signals.h for functions that take an atomic flag.
#pragma once
#include <atomic>
#include <chrono>
#include <thread>

#include "launch/ranks/signals.h"

namespace gt {

// Set at most 20 ms after stop_requested() becomes true. Requires: install_stop_signals().
class StopFlag {
 public:
  StopFlag() : flag_(stop_requested()), watcher_([this](const std::stop_token& end) { watch(end); }) {}
  const std::atomic<bool>* get() const { return &flag_; }

 private:
  void watch(const std::stop_token& end) {
    for (; !end.stop_requested() && !flag_; std::this_thread::sleep_for(std::chrono::milliseconds(20)))
      flag_ = stop_requested();
  }
  std::atomic<bool> flag_;
  std::jthread watcher_;
};

}  // namespace gt
